"""From runs in MLflow to a study's numbers: a row a trial and head, groups with intervals, what is missing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from pcr_ray.analysis.stats import Estimate, estimate
from pcr_ray.config import TrialConfig
from pcr_ray.study.load import PAPER_KEYS, Sweep, paper_trial
from pcr_ray.study.schema import METRICS, ReportSpec, SweepFile
from pcr_ray.tracking.store import REASON, Record

PREFIX = {"softmax": "", "ncm": "ncm_"}
HEADED, SHARED = METRICS[:4], METRICS[4:]  # metrics that each head has, and those of the training
WITHOUT_EFFECT = ("seed", "proxy_gradients", *TrialConfig.labels)  # on whether a trial is the paper's
ANY = "any"  # stands for the value of a field that a trial's method ignores: it holds for all values

Panel = tuple[tuple[str, Any], ...]  # fields and their values
Key = tuple[Panel, Any, str, Any]  # panel, series, head and x of a cell


@dataclass(frozen=True)
class Cell:
    """One number of the answer: a series at an x, by one head, beside the paper's."""

    panel: Panel
    series: Any
    head: str
    x: Any
    estimate: Estimate
    paper: Mapping[str, Any] | None


@dataclass
class Answer:
    """Everything a report shows."""

    sweep: Sweep
    frame: pd.DataFrame  # a row a trial and head
    cells: list[Cell]
    missing: list[str]
    failed: dict[str, str]
    runs: dict[str, str]  # identity -> MLflow run id, finished trials

    @property
    def complete(self) -> bool:
        return not self.missing and not self.failed


def collect(sweep: Sweep, record: Record) -> Answer:
    """Read the sweep's trials from MLflow, whichever sweep ran them."""
    found = record.trials()
    rows: list[dict[str, Any]] = []
    missing, failed, runs = [], {}, {}
    for identity, trial in sweep.trials.items():
        run = found.get(identity)
        if run is not None and run.info.status == "FINISHED":
            runs[identity] = run.info.run_id
            rows += _rows(identity, trial, run, sweep.varying)
        elif run is not None and run.info.status == "FAILED":
            failed[identity] = run.data.tags.get(REASON) or "unknown"
        else:
            missing.append(identity)
    columns = ["trial", *map(_column, sweep.varying), "head", *HEADED, *SHARED, "run"]
    frame = pd.DataFrame(rows, columns=columns)
    return Answer(sweep, frame, _cells(sweep, frame) if len(frame) else [], missing, failed, runs)


def _rows(identity: str, trial: TrialConfig, run: Any, varying: list[str]) -> list[dict[str, Any]]:
    flat, metrics = trial.flat(), run.data.metrics
    rows = []
    for head, prefix in PREFIX.items():
        if f"{prefix}final_accuracy" in metrics:
            row = {"trial": identity, **{_column(k): flat.get(k) for k in varying}, "head": head}
            row |= {name: metrics.get(prefix + name) for name in HEADED}
            rows.append(row | {name: metrics.get(name) for name in SHARED} | {"run": run.info.run_id})
    return rows


def _column(name: str) -> str:
    """The config's own `head` (cosine or linear) must not hide the head that a row is about."""
    return "classifier" if name == "head" else name


def value_of(trial: TrialConfig, name: str) -> Any:
    """A field's value as a key, or ANY where the trial's method has no use for the field."""
    from pcr_ray.methods import METHODS

    value = trial.flat().get(name)
    if name in METHODS.get(trial.method).inert:
        return ANY
    if value is None and (name == "gamma" or name.startswith("params.")):
        return ANY
    return tuple(value) if isinstance(value, list) else value


def panel_fields(sweep: Sweep) -> list[str]:
    """What varies besides the series, x and the seed: each combination is a table of its own."""
    spec = sweep.spec.report
    return [f for f in sweep.varying if f not in (spec.series, x_field(sweep), "seed")]


def x_field(sweep: Sweep) -> str:
    """The report's x, else the first varying field that is neither the series nor the seed."""
    spec = sweep.spec.report
    free = [f for f in sweep.varying if f not in (spec.series, "seed")]
    return spec.x or (free[0] if free else "")


def heads(spec: ReportSpec, trial: TrialConfig) -> list[str]:
    """The heads of a trial that the report shows; a method that classifies by class means has them once.

    What is about the training has nothing to do with heads and is shown once too.
    """
    from pcr_ray.methods import METHODS

    if METHODS.get(trial.method).nearest_mean or spec.y in SHARED:
        return ["softmax"]
    hidden = spec.ncm is not None and trial.method not in spec.ncm
    return [head for head in spec.heads if head != "ncm" or not hidden]


def _cells(sweep: Sweep, frame: pd.DataFrame) -> list[Cell]:
    spec, x, panels = sweep.spec.report, x_field(sweep), panel_fields(sweep)
    groups: dict[Key, list[float]] = {}
    example: dict[Key, TrialConfig] = {}
    values = frame.set_index(["trial", "head"])[spec.y].to_dict()
    for identity, trial in sweep.trials.items():
        panel = tuple((f, value_of(trial, f)) for f in panels)
        for head in heads(spec, trial):
            if (identity, head) in values and values[identity, head] == values[identity, head]:
                key = (panel, value_of(trial, spec.series), head, value_of(trial, x) if x else None)
                groups.setdefault(key, []).append(float(values[identity, head]))
                example[key] = trial
    return [
        Cell(*key, estimate(numbers), paper_row(sweep.spec, example[key], key[2])) for key, numbers in groups.items()
    ]


def paper_row(spec: SweepFile, trial: TrialConfig, head: str) -> Mapping[str, Any] | None:
    """The paper's number for this group, where every field that its row names agrees.

    With a preset a row names them all: other tasks, heads or learning rates are not the paper's.
    """
    flat, rows = trial.flat(), spec.report.paper
    assert not isinstance(rows, str)  # it was read with the sweep file
    for row in rows if spec.report.y == "final_accuracy" else []:
        fields = {k: v for k, v in row.items() if k not in PAPER_KEYS}
        if row.get("head", "softmax") == head and all(flat.get(k) == v for k, v in fields.items()):
            theirs = paper_trial(spec, row)
            if theirs is None or _alike(trial, theirs):
                return row
    return None


def _alike(trial: TrialConfig, other: TrialConfig) -> bool:
    """The same but for what has no effect on whose number stands beside whose."""
    return trial.model_copy(update={k: getattr(other, k) for k in WITHOUT_EFFECT}) == other


def label(cell: Cell, sweep: Sweep) -> str:
    """`PCR`, or `PCR-NCM` for the same training with class means."""
    name = str(cell.series)
    if sweep.spec.report.series == "method":
        from pcr_ray.methods import METHODS

        name = METHODS.get(name).title if name in METHODS else name
    return f"{name}-NCM" if cell.head == "ncm" else name
