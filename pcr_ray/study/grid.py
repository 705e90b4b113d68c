"""The grids and rules of a sweep file: from lists of values to combinations, and which of them a rule means."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from pcr_ray.config import FIELDS, TrialConfig
from pcr_ray.study.presets import preset_fields
from pcr_ray.study.schema import SweepFile

MAX_TRIALS = 100_000
DEFAULTS = {name: field.get_default() for name, field in TrialConfig.model_fields.items()}


def is_field(key: str) -> bool:
    """Whether a trial can have it; a method's parameters are checked when the method is known."""
    return key in FIELDS or str(key).startswith("params.")


def expand(spec: SweepFile, problems: list[str]) -> list[tuple[str, dict[str, Any]]]:
    """(place in the file, given fields) of every combination, with `grid` shared by all of `grids`."""
    shared = _axes(spec.grid, "grid", problems)
    united = [(f"grids[{i}]", _axes(g, f"grids[{i}]", problems)) for i, g in enumerate(spec.grids)]
    if not spec.grid and not spec.grids:
        problems.append("grid: empty; give at least one field and its values, such as seed: [0]")
    fixed = {k: v for k, v in spec.fixed.items() if is_field(k)}
    for place, axes in [("grid", shared), *united]:
        problems += [f"{place}.{key}: also in 'fixed'; keep one of them" for key in axes if key in spec.fixed]
        problems += [
            f"adjust[{i}].set.{key}: also in '{place}', where it already has its values; use exclude to drop some"
            for i, adjustment in enumerate(spec.adjust)
            for key in adjustment.set
            if key in axes
        ]
    combinations: list[tuple[str, dict[str, Any]]] = []
    for place, axes in united or [("grid", {})]:
        merged = shared | axes
        if len(combinations) + math.prod(map(len, merged.values())) > MAX_TRIALS:
            problems.append(f"{place}: more than {MAX_TRIALS:,} trials; split the study into several files")
            break
        for values in itertools.product(*merged.values()):
            combinations.append((place, fixed | dict(zip(merged, values))))
    return combinations


def with_presets(spec: SweepFile, given: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of the file's presets and of the trial's own, later ones last, and over them what is given."""
    fields: dict[str, Any] = {}
    for name in (*spec.presets, str(given.get("preset"))):
        fields |= preset_fields(name, given)
    return {**fields, **given}


def _axes(grid: Mapping[str, Any], place: str, problems: list[str]) -> dict[str, list[Any]]:
    """Fields and their values; what is not usable is reported and left out, so that the rest can be checked."""
    axes = {key: list(_values(value, f"{place}.{key}", problems)) for key, value in grid.items() if key != "params"}
    return {key: values for key, values in axes.items() if values and is_field(key)}


def _values(value: Any, place: str, problems: list[str]) -> Iterator[Any]:
    if isinstance(value, dict) and set(value) == {"range"}:
        bounds = value["range"]
        if isinstance(bounds, list) and len(bounds) == 2 and all(type(b) is int for b in bounds):
            if bounds[0] >= bounds[1]:
                problems.append(f"{place}: range {bounds} is empty; it runs from the first to the second minus one")
            elif bounds[1] - bounds[0] > MAX_TRIALS:
                problems.append(f"{place}: range {bounds} has more than {MAX_TRIALS:,} values")
            else:
                yield from range(*bounds)
        else:
            problems.append(f"{place}: range needs two whole numbers, such as {{range: [0, 10]}}, got {bounds!r}")
    elif isinstance(value, list):
        if not value:
            problems.append(f"{place}: an empty list; give at least one value or remove the key")
        doubles = sorted(text for text, n in Counter(map(repr, value)).items() if n > 1)
        if doubles:
            problems.append(f"{place}: {', '.join(doubles)} twice, so trials would be duplicates")
        yield from value
    else:
        problems.append(f"{place}: expected a list of values or {{range: [a, b]}}, got {value!r}; write [{value}]")


def matches(raw: Mapping[str, Any], rule: Mapping[str, Any]) -> bool:
    """Whether a trial has all that a rule names; a list in a rule is a choice, unless the field itself is a list."""
    return bool(rule) and all(_has(raw.get(key, DEFAULTS.get(key)), value) for key, value in rule.items())


def excluded(spec: SweepFile, given: Mapping[str, Any]) -> bool:
    raw = with_presets(spec, given)
    return any(matches(raw, rule) for rule in spec.exclude)


def _has(own: Any, value: Any) -> bool:
    if isinstance(value, dict) and set(value) == {"range"}:
        value = list(_values(value, "", []))
    return own == value or (isinstance(value, list) and own in value)


def useless_rules(spec: SweepFile) -> list[tuple[str, dict[str, Any]]]:
    """Rules that none of the file's trials meets, and their places: slips, such as a misspelt value."""
    rules = [(f"exclude[{i}]", rule) for i, rule in enumerate(spec.exclude)]
    rules += [(f"adjust[{i}].when", a.when) for i, a in enumerate(spec.adjust)]
    raws = [with_presets(spec, given) for _, given in expand(spec, [])] if rules else []
    return [(place, rule) for place, rule in rules if raws and not any(matches(raw, rule) for raw in raws)]


def adjusted(
    spec: SweepFile, given: Mapping[str, Any], *, chosen: bool = False
) -> tuple[dict[str, Any], dict[str, str]]:  # fmt: skip
    """The given fields with adjustments applied, later ones last, and where each adjusted field comes from.

    With `chosen`, also what a search found. Presets come after this: an adjusted preset, method or memory decides.
    """
    raw, fields = with_presets(spec, given), dict(given)
    origins: dict[str, str] = {}
    rules = [(f"adjust[{i}].set", rule) for i, rule in enumerate(spec.adjust)]
    if chosen and spec.search:
        rules += [(f"search.chosen[{i}].set", rule) for i, rule in enumerate(spec.search.chosen)]
    for place, rule in rules:
        if matches(raw, rule.when):
            fields |= rule.set
            origins |= dict.fromkeys(rule.set, place)
    return fields, origins
