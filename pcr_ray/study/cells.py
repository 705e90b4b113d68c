"""Which cell of a study's answer a trial belongs to: its panel, its series and its x."""

from __future__ import annotations

from typing import Any

from pcr_ray.config import TrialConfig
from pcr_ray.methods import METHODS
from pcr_ray.metrics import METRICS, NCM, SOFTMAX
from pcr_ray.study.load import Study
from pcr_ray.study.schema import ReportSpec

ANY = "any"  # stands for the value of a field that a trial's method ignores: it holds for all values

Panel = tuple[tuple[str, Any], ...]  # fields and their values
Key = tuple[Panel, Any, str, Any]  # panel, series, classifier and x of a cell


def x_field(study: Study) -> str:
    """The report's x, else the first varying field that is neither the series nor the seed."""
    spec = study.spec.report
    free = [f for f in study.varying if f not in (spec.series, "seed")]
    return spec.x or (free[0] if free else "")


def panel_fields(study: Study) -> list[str]:
    """What varies besides the series, x and the seed: each combination is a table of its own."""
    spec = study.spec.report
    return [f for f in study.varying if f not in (spec.series, x_field(study), "seed")]


def fields(study: Study) -> list[str]:
    """All that tell cells apart: the series, x, then the panels' fields."""
    return list(dict.fromkeys(f for f in (study.spec.report.series, x_field(study), *panel_fields(study)) if f))


def value_of(trial: TrialConfig, name: str) -> Any:
    """A field's value as a key, or ANY where the trial's method has no use for the field."""
    value = trial.flat().get(name)
    if name in METHODS.get(trial.method).inert:
        return ANY
    if value is None and (name == "gamma" or name.startswith("params.")):
        return ANY
    return tuple(value) if isinstance(value, list) else value


def shown_classifiers(spec: ReportSpec, trial: TrialConfig, metric: str) -> list[str]:
    """Of a trial in the report of a metric; a method that classifies by class means has them once.

    What is about the training has nothing to do with classifiers and is shown once too.
    """
    if METHODS.get(trial.method).nearest_mean or not METRICS[metric].per_classifier:
        return [SOFTMAX.name]
    hidden = spec.ncm is not None and trial.method not in spec.ncm
    return [name for name in spec.classifiers if name == SOFTMAX.name or not hidden]


def expected_classifiers(spec: ReportSpec, trial: TrialConfig, metric: str) -> list[str]:
    """Those that will have numbers: without a memory there are no class means."""
    shown = shown_classifiers(spec, trial, metric)
    return shown if METHODS.get(trial.method).uses_memory else [name for name in shown if name != NCM.name]


def cell_key(study: Study, trial: TrialConfig, classifier: str) -> Key:
    """The cell that a trial's number by this classifier belongs to."""
    x = x_field(study)
    panel = tuple((f, value_of(trial, f)) for f in panel_fields(study))
    return panel, value_of(trial, study.spec.report.series), classifier, value_of(trial, x) if x else None
