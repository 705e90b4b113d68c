"""The metrics on matrices small enough to do by hand."""

from __future__ import annotations

import pytest

from pcr_ray import metrics

# a[i][j] is the accuracy on task j after task i. Task 1 gets better while task 2 is learned, then is forgotten.
MATRIX = [
    [80.0],
    [90.0, 70.0],
    [30.0, 64.0, 50.0],
]


def test_average_accuracy_is_the_mean_over_tasks_seen() -> None:
    assert metrics.average_accuracy(MATRIX) == [80, 80, 48]


def test_new_accuracy_is_that_of_the_task_just_learned() -> None:
    assert metrics.new_accuracy(MATRIX) == [80, 70, 50]


def test_old_accuracy_leaves_the_new_task_out_and_is_none_after_the_first() -> None:
    assert metrics.old_accuracy(MATRIX) == [None, 90, 47]


def test_forgetting_counts_from_the_best_accuracy_a_task_ever_had() -> None:
    """After task 3: (90 - 30) + (70 - 64) + (50 - 50) = 66, over 3 tasks. Improving is not negative forgetting."""
    assert metrics.forgetting(MATRIX) == [0, 0, 22]


def test_forgetting_remembers_a_best_accuracy_in_the_middle() -> None:
    """Task 1 went 10, 50, 20, 40: its best is neither its first nor its last but one."""
    matrix = [[10.0], [50.0, 60.0], [20.0, 80.0, 30.0], [40.0, 60.0, 50.0, 70.0]]
    assert metrics.forgetting(matrix) == pytest.approx([0, 0, 30 / 3, (10 + 20 + 0 + 0) / 4])


def test_every_metric_of_a_classifier_has_its_prefix() -> None:
    assert metrics.of_classifier(MATRIX, metrics.NCM) == {
        "ncm_accuracy_matrix": MATRIX,
        "ncm_average_accuracy": [80, 80, 48],
        "ncm_new_accuracy": [80, 70, 50],
        "ncm_old_accuracy": [None, 90, 47],
        "ncm_forgetting": [0, 0, 22],
        "ncm_final_accuracy": 48,
    }


def test_a_trial_without_tasks_done_has_no_final_accuracy() -> None:
    summary = metrics.of_classifier([], metrics.SOFTMAX)
    assert summary["final_accuracy"] is None
    assert summary["average_accuracy"] == summary["forgetting"] == []


def test_after_a_task_there_is_every_number_that_is_defined_there() -> None:
    training = metrics.Training(
        losses=[2.0, 1.5, 1.0], seconds=[4.0, 5.0, 2.0], images=[100, 50, 30], memory=[700.0, 900.0, 800.0]
    )
    matrices = {"softmax": MATRIX, "ncm": []}
    first = metrics.after_task(1, matrices, training, last=False)
    assert first == {
        "average_accuracy": 80, "new_accuracy": 80, "forgetting": 0, "loss": 2, "samples_per_second": 25,
        "accuracy_task_1": 80, "train_seconds": 4, "peak_memory": 700,
    }  # fmt: skip
    third = metrics.after_task(3, matrices, training, last=True)
    assert third["final_accuracy"] == third["average_accuracy"] == 48 and third["old_accuracy"] == 47
    assert (
        third["samples_per_second"] == 15
        and third["train_seconds"] == 11
        and third["peak_memory"] == 900
        and third["accuracy_task_2"] == 64
    )


def test_a_metric_is_of_the_classifiers_or_of_the_training() -> None:
    assert all((m.of_matrix is None) != (m.of_training is None) for m in metrics.METRICS.values())
    assert metrics.METRICS["forgetting"].label == "Forgetting in points"
