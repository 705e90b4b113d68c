"""From runs in MLflow to a study's numbers: a frame, cells with the values of their seeds, and what is missing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pandas as pd

from pcr_ray.analysis.stats import Estimate, estimate
from pcr_ray.config import TrialConfig
from pcr_ray.methods import METHODS
from pcr_ray.metrics import CLASSIFIERS, METRICS
from pcr_ray.provenance import changed, differences
from pcr_ray.study import paper
from pcr_ray.study.cells import Key, Panel, cell_key, shown_classifiers
from pcr_ray.study.load import Study
from pcr_ray.tracking.runs import Status, TrialRun
from pcr_ray.tracking.store import Store

FINAL = "final_accuracy"
PROVENANCE = {"code": "code", "version": "version", "commit": "commit", "node": "node", "run": "run_id"}  # of a run
Curves = dict[tuple[str, str], list[float]]  # (run id, recorded metric) -> values after each task that has one


@dataclass(frozen=True)
class Cell:
    """One number of the answer: a series at an x, by one classifier, beside the paper's."""

    panel: Panel
    series: Any
    classifier: str
    x: Any
    values: Mapping[int, float]  # by seed: all methods see the same stream for a seed, so cells can be paired
    paper: Mapping[str, Any] | None
    trials: tuple[str, ...] = ()

    @property
    def estimate(self) -> Estimate:
        return estimate(list(self.values.values()))


@dataclass
class Answer:
    """Everything a report shows."""

    study: Study
    frame: pd.DataFrame  # one row per trial and classifier
    cells: list[Cell]
    runs: dict[str, TrialRun]  # finished trials by identity
    missing: list[str]
    failed: dict[str, str]
    curves: Curves = field(default_factory=dict)
    outdated: dict[str, list[str]] = field(default_factory=dict)  # finished with other code: identity -> what differs
    versions: dict[str, str] = field(default_factory=dict)  # of what the sweep ran with, where it is known
    metric: str = FINAL  # that the cells have

    @property
    def by_metric(self) -> list[Answer]:
        """The same answer with the cells of each of the report's metrics."""
        return [
            self if name == self.metric else replace(self, metric=name, cells=_cells(self.study, self.frame, name))
            for name in self.study.spec.report.metrics
        ]

    @property
    def complete(self) -> bool:
        return not self.missing and not self.failed

    def curves_of(self, cell: Cell, metric: str) -> list[list[float]]:
        """One curve per seed of a cell, by its classifier."""
        name = CLASSIFIERS[cell.classifier].metric(metric)
        return [c for i in cell.trials if i in self.runs and (c := self.curves.get((self.runs[i].run_id, name)))]

    def code_differences(self, cell: Cell) -> list[str]:
        """The sources in which a cell's trials differ from each other; unknown code differs from any other."""
        sources = [self.runs[i].sources for i in cell.trials if i in self.runs]
        known = [s for s in sources if s is not None]
        names = {name for other in known[1:] for name in changed(known[0], other)}
        return sorted(names) + ["code that was not recorded"] * (0 < len(known) < len(sources))


def collect(study: Study, store: Store) -> Answer:
    """Read the study's trials from MLflow, whichever sweep ran them."""
    found = store.trials(study.trials.keys())
    rows: list[dict[str, Any]] = []
    missing, failed, runs = [], {}, {}
    for identity, trial in study.trials.items():
        run = found.get(identity)
        if run and run.finished:
            runs[identity] = run
            rows += _rows(identity, trial, run)
        elif run and run.status is Status.FAILED:
            failed[identity] = run.reason or "unknown"
        else:
            missing.append(identity)
    fields = dict.fromkeys(name for trial in study.trials.values() for name in trial.flat())
    frame = pd.DataFrame(rows, columns=["trial", *fields, "classifier", *METRICS, *PROVENANCE])
    metric = study.spec.report.metrics[0]
    answer = Answer(study, frame, _cells(study, frame, metric), runs, missing, failed, metric=metric)
    answer.curves = _curves(answer, store)
    found_differences = {i: differences(run.sources, study.trials[i], study.spec.trainable) for i, run in runs.items()}
    answer.outdated = {i: names for i, names in found_differences.items() if names}
    answer.versions = store.sweep_versions(study.name)
    return answer


def _rows(identity: str, trial: TrialConfig, run: TrialRun) -> list[dict[str, Any]]:
    rows = []
    for classifier in CLASSIFIERS.values():
        if classifier.metric("final_accuracy") in run.metrics:
            row = {"trial": identity, **trial.flat(), "classifier": classifier.name}
            for name, metric in METRICS.items():
                row[name] = run.metrics.get(classifier.metric(name) if metric.per_classifier else name)
            rows.append(row | {name: getattr(run, attribute) for name, attribute in PROVENANCE.items()})
    return rows


NEEDED = {  # by figures: metrics of which every task's value is shown
    "stages": ["average_accuracy"],
    "balance": ["new_accuracy", "old_accuracy"],
}


def _curves(answer: Answer, store: Store) -> Curves:
    """What the report's figures show of every finished trial."""
    figures = answer.study.spec.report.figures
    names = [metric for figure in figures for metric in NEEDED.get(figure, [])]
    if "heat_map" in figures:
        tasks = max((trial.tasks or 1 for trial in answer.study.trials.values()), default=1)
        names += [f"accuracy_task_{j + 1}" for j in range(tasks)]
    return store.curves(answer.runs.values(), [c.metric(name) for name in names for c in CLASSIFIERS.values()])


def _cells(study: Study, frame: pd.DataFrame, metric: str) -> list[Cell]:
    spec = study.spec.report
    groups: dict[Key, dict[str, float]] = {}
    numbers = frame.set_index(["trial", "classifier"])[metric].to_dict()
    for identity, trial in [*study.trials.items(), *study.others]:
        for classifier in shown_classifiers(spec, trial, metric):
            number = numbers.get((identity, classifier))
            if number is not None and number == number:
                groups.setdefault(cell_key(study, trial, classifier), {})[identity] = float(number)
    cells = []
    for key, group in groups.items():
        trials = [study.trials[i] for i in group]
        values = {trial.seed: number for trial, number in zip(trials, group.values())}
        if len(values) < len(group):  # fields that the table does not show vary too: number the values instead
            values = dict(enumerate(group.values()))
        theirs = paper.row_of(study.spec, trials[0], key[2]) if metric == FINAL else None
        cells.append(Cell(*key, values, theirs, tuple(group)))
    return cells


def label(cell: Cell, study: Study) -> str:
    """`PCR`, or `PCR-NCM` for the same training with class means."""
    name = str(cell.series)
    if study.spec.report.series == "method":
        name = METHODS.get(name).title if name in METHODS else name
    return name + CLASSIFIERS[cell.classifier].suffix


def scale(study: Study) -> str:
    """`on 20 % of the training images` where all trials are scaled down; empty where they are not, or differ."""
    fractions = {trial.fraction for trial in study.trials.values()}
    if len(fractions) != 1 or fractions == {1.0}:
        return ""
    return f"on {100 * fractions.pop():g} % of the training images"
