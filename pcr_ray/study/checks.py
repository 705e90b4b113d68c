"""What can be wrong with a sweep file beyond its schema, as lines that say where and what to write instead."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any

from pcr_ray.config import ALIASES, FIELDS, TrialConfig, field_hint
from pcr_ray.methods import METHODS
from pcr_ray.metrics import CLASSIFIERS, METRICS
from pcr_ray.study.grid import is_field
from pcr_ray.study.presets import PRESETS
from pcr_ray.study.schema import FIGURES, SweepFile
from pcr_ray.text import did_you_mean


def unknown_keys(content: Mapping[str, Any]) -> list[str]:
    keys = list(SweepFile.model_fields)
    return [f"{key}: {_instead(str(key), keys)}" for key in content if key not in keys]


def _instead(key: str, keys: list[str]) -> str:
    field = key if is_field(key) else ALIASES.get(key.lower().replace("-", "_"))
    if field is None:
        return f"unknown key{did_you_mean(key, keys)}"
    called = "" if field == key else f", here called {field}"
    return f"a field of a trial{called}: put it under fixed, or under grid with a list of values"


def of_names(spec: SweepFile) -> list[str]:
    """Names that nothing has: fields, presets, metrics, classifiers, figures, methods."""
    problems = [
        f"presets: unknown preset '{p}'{did_you_mean(p, list(PRESETS))}" for p in spec.presets if p not in PRESETS
    ]
    places = [("fixed", spec.fixed), ("grid", spec.grid)]
    places += [(f"grids[{i}]", g) for i, g in enumerate(spec.grids)]
    places += [(f"exclude[{i}]", e) for i, e in enumerate(spec.exclude)]
    places += [(f"adjust[{i}].when", a.when) for i, a in enumerate(spec.adjust)]
    places += [(f"adjust[{i}].set", a.set) for i, a in enumerate(spec.adjust)]
    for place, mapping in places:
        for key in mapping:
            if key == "params" and place.startswith("grid"):
                problems.append(f"{place}.params: write params.NAME and its values, such as params.alpha: [0.1, 0.5]")
            elif not is_field(key):
                problems.append(f"{place}.{key}: unknown key{field_hint(str(key))}")
    if not re.fullmatch(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*", spec.trainable):
        problems.append(f"trainable: '{spec.trainable}' is not of the form package.module:Class")
    for name in ("x", "series"):
        value = getattr(spec.report, name)
        if value and not is_field(value):
            problems.append(f"report.{name}: unknown field '{value}'{did_you_mean(value, FIELDS)}")
    if spec.report.x == spec.report.series:
        problems.append(f"report.x: {spec.report.x} is the series already; name another field as x or as series")
    for place, names in (("y", spec.report.metrics), ("columns", spec.report.columns)):
        problems += [
            f"report.{place}: unknown metric '{name}'{did_you_mean(name, list(METRICS))}"
            for name in names
            if name not in METRICS
        ]
        if len(names) != len(set(names)) or (not names and place == "y"):
            problems.append(f"report.{place}: give each metric once" + (", and at least one" if not names else ""))
    problems += [
        f"report.classifiers: unknown classifier{did_you_mean(name, list(CLASSIFIERS))}"
        for name in spec.report.classifiers
        if name not in CLASSIFIERS
    ]
    if len(spec.report.classifiers) != len(set(spec.report.classifiers)) or not spec.report.classifiers:
        problems.append(f"report.classifiers: give {' or '.join(CLASSIFIERS)} or both, each once")
    problems += [
        f"report.figures: unknown figure '{name}'{did_you_mean(name, FIGURES)}"
        for name in spec.report.figures
        if name not in FIGURES
    ]
    problems += [
        f"report.ncm: unknown method '{m}'{did_you_mean(m, METHODS.names())}"
        for m in spec.report.ncm or []
        if m not in METHODS
    ]
    return problems + _search(spec)


def _search(spec: SweepFile) -> list[str]:
    """What is wrong with the search of a file."""
    search = spec.search
    if search is None:
        return []
    found = [f"search.space.{k}: unknown field" for k in search.space if not is_field(k)]
    grids = {key for grid in (spec.grid, *spec.grids) for key in grid}
    for key in search.space:
        if key in grids or key in ("seed", "stop_after", "method", "dataset"):
            found.append(f"search.space.{key}: the grid decides it; search for another field")
    found += [f"search.per.{key}: not in a grid, so it does not vary" for key in search.per or [] if key not in grids]
    metric = METRICS.get(search.metric)
    if metric is None or not metric.per_classifier:
        known = [name for name, m in METRICS.items() if m.per_classifier]
        found.append(f"search.metric: '{search.metric}' cannot be searched by{did_you_mean(search.metric, known)}")
    return found


def of_trials(spec: SweepFile, trials: Collection[TrialConfig]) -> list[str]:
    """What the report names and no trial has."""
    report, flats = spec.report, [trial.flat() for trial in trials]
    problems = [
        f"report.{place}: no trial has {value}"
        for place, value in (("x", report.x), ("series", report.series))
        if flats and value.startswith("params.") and not any(value in flat for flat in flats)
    ]
    series = list(dict.fromkeys(str(flat.get(report.series)) for flat in flats))
    if series and report.baseline and report.baseline not in series:
        problems.append(
            f"report.baseline: no {report.series} '{report.baseline}'{did_you_mean(report.baseline, series)}"
        )
    return problems


def of_search(spec: SweepFile, trials: Collection[TrialConfig]) -> list[str]:
    """Whether trials have as many tasks as the search is judged by."""
    fewest = min((trial.tasks or 1 for trial in trials), default=None)
    if spec.search is None or fewest is None or spec.search.tune_on.tasks <= fewest:
        return []
    return [f"search.tune_on.tasks: {spec.search.tune_on.tasks}, but there are {fewest} tasks"]
