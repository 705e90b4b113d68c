"""What is measured: classifiers, metrics, and how metrics follow from the accuracy matrix and the training.

a[i][j] is the accuracy on task j after task i, in percent. A_i = mean_{j<=i} a_ij, new A^n_i = a_ii,
old A^o_i = mean_{j<i} a_ij, final = A_T, forgetting after task i = mean_{j<=i} (max_{k<=i} a_kj - a_ij).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

Matrix = list[list[float]]
Curve = list[float | None]  # one entry per task; None: not defined there


@dataclass(frozen=True)
class Classifier:
    """One of the two that every training gives."""

    name: str  # in files and tables
    title: str
    prefix: str  # of its metrics' names
    suffix: str  # of a method's title, where the classifier has a row of its own

    def metric(self, name: str) -> str:
        return self.prefix + name


SOFTMAX = Classifier("softmax", "the method's own classifier", "", "")
NCM = Classifier("ncm", "nearest class mean", "ncm_", "-NCM")
CLASSIFIERS = {c.name: c for c in (SOFTMAX, NCM)}


@dataclass
class Training:
    """What a trial's training leaves behind, one entry per task."""

    losses: list[float]
    seconds: list[float]
    images: list[int]
    memory: list[float] = field(default_factory=list)  # MiB at most until then, of the device if it is a GPU


@dataclass(frozen=True)
class Metric:
    """One number per task. With `of_matrix` each classifier has it, with `of_training` the trial has."""

    name: str
    title: str
    unit: str = ""
    lower_is_better: bool = False
    only_at_the_end: bool = False
    of_matrix: Callable[[Matrix], Curve] | None = None
    of_training: Callable[[Training], Curve] | None = None

    @property
    def per_classifier(self) -> bool:
        return self.of_matrix is not None

    @property
    def label(self) -> str:
        return f"{self.title} in {self.unit}" if self.unit else self.title


def average_accuracy(matrix: Matrix) -> Curve:
    return [fmean(row) for row in matrix]


def new_accuracy(matrix: Matrix) -> Curve:
    return [row[-1] for row in matrix]


def old_accuracy(matrix: Matrix) -> Curve:
    """None for the first task: there is nothing old yet."""
    return [fmean(row[:-1]) if len(row) > 1 else None for row in matrix]


def forgetting(matrix: Matrix) -> Curve:
    return [
        fmean(max(matrix[k][j] for k in range(j, i + 1)) - matrix[i][j] for j in range(i + 1))
        for i in range(len(matrix))
    ]


def total_seconds(training: Training) -> Curve:
    return [sum(training.seconds[: i + 1]) for i in range(len(training.seconds))]


def peak_memory(training: Training) -> Curve:
    """None where a checkpoint did not know it."""
    unknown = len(training.seconds) - len(training.memory)
    return [None] * unknown + [max(training.memory[: i + 1]) for i in range(len(training.memory))]


METRICS = {
    metric.name: metric
    for metric in (
        Metric("final_accuracy", "Final accuracy", "%", only_at_the_end=True, of_matrix=average_accuracy),
        Metric("average_accuracy", "Accuracy on the tasks so far", "%", of_matrix=average_accuracy),
        Metric("new_accuracy", "Accuracy on the newest task", "%", of_matrix=new_accuracy),
        Metric("old_accuracy", "Accuracy on older tasks", "%", of_matrix=old_accuracy),
        Metric("forgetting", "Forgetting", "points", lower_is_better=True, of_matrix=forgetting),
        Metric("loss", "Mean loss", lower_is_better=True, of_training=lambda t: [*t.losses]),
        Metric(
            "samples_per_second", "Stream images per second",
            of_training=lambda t: [n / s for n, s in zip(t.images, t.seconds)],
        ),
        Metric("train_seconds", "Training time", "s", lower_is_better=True, of_training=total_seconds),
        Metric("peak_memory", "Peak memory", "MiB", lower_is_better=True, of_training=peak_memory),
    )
}  # fmt: skip


def of_classifier(matrix: Matrix, classifier: Classifier) -> dict[str, Any]:
    """All metrics of one classifier: lists with one entry per task, one number for what there is only at the end."""
    found: dict[str, Any] = {classifier.metric("accuracy_matrix"): matrix}
    for metric in METRICS.values():
        if metric.of_matrix:
            curve = metric.of_matrix(matrix)
            found[classifier.metric(metric.name)] = (curve or [None])[-1] if metric.only_at_the_end else curve
    return found


def after_task(task: int, matrices: dict[str, Matrix], training: Training, *, last: bool) -> dict[str, float]:
    """Every metric after task number `task` (from 1), by its recorded name; `matrices` are by classifier's name."""
    out: dict[str, float | None] = {}
    for metric in METRICS.values():
        if metric.only_at_the_end and not last:
            continue
        if metric.of_training:
            out[metric.name] = metric.of_training(training)[task - 1]
        for name, matrix in matrices.items():
            if metric.of_matrix and matrix:
                out[CLASSIFIERS[name].metric(metric.name)] = metric.of_matrix(matrix[:task])[-1]
    for name, matrix in matrices.items():
        if matrix:
            own = CLASSIFIERS[name].metric("accuracy_task_")
            out |= {f"{own}{j + 1}": accuracy for j, accuracy in enumerate(matrix[task - 1])}
    return {k: v for k, v in out.items() if v is not None}
