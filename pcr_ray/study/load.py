"""Sweep files: from YAML to trials. Every problem of a file is reported at once, with its place. No ray, no torch.

A file is read with `yaml.safe_load`; nothing in it is ever evaluated.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from pcr_ray.config import FIELDS, TrialConfig
from pcr_ray.errors import InputError, problems_error
from pcr_ray.identity import identity
from pcr_ray.methods import METHODS
from pcr_ray.metrics import CLASSIFIERS, METRICS
from pcr_ray.study import paper
from pcr_ray.study.grid import adjusted, expand, is_field, matches, useless_rules
from pcr_ray.study.presets import PRESETS
from pcr_ray.study.reader import override, read_yaml, with_dotted_params
from pcr_ray.study.resolve import ConfigProblems, explain, resolve
from pcr_ray.study.schema import FIGURES, ReportSpec, Resources, SweepFile
from pcr_ray.text import did_you_mean

KEYS = {name: list(model.model_fields) for name, model in (("report", ReportSpec), ("resources", Resources))}


@dataclass(frozen=True)
class Study:
    """A validated sweep file: its content, and its trials by identity in the file's order."""

    spec: SweepFile
    trials: dict[str, TrialConfig]
    collapsed: int = 0  # combinations that are the same trial as another one
    varying: list[str] = field(default_factory=list)
    others: list[tuple[str, TrialConfig]] = field(default_factory=list)  # the same trials under other labels

    @property
    def name(self) -> str:
        return self.spec.name

    def describe(self, identity: str) -> str:
        """The fields that tell this trial from the study's others."""
        flat = self.trials[identity].flat()
        parts = [f"{k}={flat.get(k)}" for k in self.varying if k != "method" and flat.get(k) is not None]
        return " ".join([str(flat["method"]), *parts])

    def run_name(self, identity: str) -> str:
        """`pcr 40 0 (method, buffer, seed)`, `40 0 pcr (buffer, seed)`: narrow columns show the beginning only."""
        flat = self.trials[identity].flat()
        fields = [k for k in self.varying if flat.get(k) is not None]
        if not fields:
            return str(flat["method"])
        values = [flat[k] for k in fields] + [flat["method"]] * ("method" not in fields)
        return f"{' '.join(map(str, values))} ({', '.join(fields)})"

    def to_yaml(self, *, paper: bool = True) -> str:
        """The file as it was run, with overrides applied; without the paper's numbers it is short."""
        left_out = None if paper else {"report": {"paper"}}
        content = self.spec.model_dump(exclude_defaults=True, exclude=left_out)
        return yaml.safe_dump(content, sort_keys=False, allow_unicode=True)


def load(path: str | Path, overrides: list[str] | None = None) -> Study:
    """Read a sweep file and apply `--set` overrides."""
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
        content = read_yaml(text)
    except FileNotFoundError:
        raise InputError(f"sweep file {path} does not exist{_near_files(path)}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"sweep file {path} cannot be read: {error}") from None
    except yaml.YAMLError as error:
        raise InputError(f"sweep file {path} is not valid YAML: {' '.join(str(error).split())}") from None
    return parse(content, str(path), overrides or [], folder=path.parent)


def parse(
    content: Any,
    where: str,
    overrides: list[str] | None = None,
    folder: Path | None = None,
    *,
    stored: bool = False,
) -> Study:
    """Validate a sweep file's content and expand it; raises one `InputError` with all problems.

    Overrides may leave a rule without use, or grids with the same trials. That holds for a `stored` file too: its
    overrides are applied already.
    """
    if not isinstance(content, dict):
        raise InputError(f"{where}: expected a mapping with 'name' and 'grid', got {type(content).__name__}")
    content = with_dotted_params(content)
    useless = [] if stored else _slips(content)
    for text in overrides or []:
        override(content, text)
    problems = _unknown_keys(content)
    spec = _spec_or_problems(content, problems)
    problems += _check_names(spec)
    rules = [*spec.exclude, *(a.when for a in spec.adjust)]
    problems += [f"{place}: no trial of the file has {rule}" for place, rule in useless if rule in rules]
    combinations = expand(spec, problems)
    left = [(place, raw) for place, raw in combinations if not any(matches(raw, rule) for rule in spec.exclude)]
    if combinations and not left:
        problems.append("exclude: nothing is left to run")
    spec = paper.with_rows(spec, folder, problems)
    changed = stored or bool(overrides)
    study = _resolve_all(spec, left, problems, doubles=changed)
    problems += [] if changed else _report_slips(study)
    if problems:
        raise problems_error(where, problems)
    return study


def _spec(content: Mapping[str, Any]) -> SweepFile:
    return SweepFile.model_validate({k: v for k, v in content.items() if k in SweepFile.model_fields})


def _spec_or_problems(content: Mapping[str, Any], problems: list[str]) -> SweepFile:
    """Goes on without the keys that do not fit the schema, so that what is wrong with the others is said too."""
    try:
        return _spec(content)
    except ValidationError as error:
        problems += [str(p) for p in explain(error, keys=KEYS)]
        bad = {item["loc"][0] for item in error.errors()}
        return _spec({"name": "unnamed"} | {k: v for k, v in content.items() if k not in bad})


def _slips(content: Mapping[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    try:
        return useless_rules(_spec(content))
    except ValidationError:
        return []  # said elsewhere


def _report_slips(study: Study) -> list[str]:
    """What the report names and no trial has."""
    report, flats = study.spec.report, [trial.flat() for trial in study.trials.values()]
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


def _unknown_keys(content: Mapping[str, Any]) -> list[str]:
    keys = list(SweepFile.model_fields)
    return [f"{key}: unknown key{did_you_mean(str(key), keys)}" for key in content if key not in keys]


def _check_names(spec: SweepFile) -> list[str]:
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
                problems.append(f"{place}.{key}: unknown key{did_you_mean(str(key), FIELDS)}")
    if not re.fullmatch(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*", spec.trainable):
        problems.append(f"trainable: '{spec.trainable}' is not of the form package.module:Class")
    for name in ("x", "series"):
        value = getattr(spec.report, name)
        if value and not is_field(value):
            problems.append(f"report.{name}: unknown field{did_you_mean(value, FIELDS)}")
    if spec.report.x == spec.report.series:
        problems.append(f"report.x: {spec.report.x} is the series already; name another field as x or as series")
    if spec.report.y not in METRICS:
        problems.append(f"report.y: unknown metric{did_you_mean(spec.report.y, list(METRICS))}")
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
    return problems


def _resolve_all(
    spec: SweepFile, combinations: list[tuple[str, dict[str, Any]]], problems: list[str], *, doubles: bool
) -> Study:
    trials: dict[str, TrialConfig] = {}
    raws: dict[str, tuple[str, dict[str, Any]]] = {}
    others: dict[tuple[str, str], tuple[str, TrialConfig]] = {}
    found: Counter[str] = Counter()
    collapsed = 0
    for place, raw in combinations:
        try:
            fields, origins = adjusted(spec, raw)
            config = resolve(fields)
        except ConfigProblems as error:
            for p in error.problems:
                origin = f"{origins[p.field]}.{p.field}" if p.field in origins else _place(spec, place, p.field)
                own = "; give each method with it an entry in grids" if origin.startswith("grid.params.") else ""
                found[f"{origin}: {p.message}{own}"] += 1
            continue
        key = identity(config, spec.trainable)
        if key not in trials:
            trials[key], raws[key] = config, (place, raw)
            continue
        collapsed += 1
        if config != trials[key]:
            others[key, repr(config)] = key, config
        if raw == raws[key][1] and not doubles:
            found[f"{place}: duplicates of trials in {raws[key][0]}; remove one of them"] += 1
    problems += [text if n == 1 else f"{text} ({n} trials)" for text, n in found.items()]
    return Study(spec, trials, collapsed, _varying(spec, [raw for _, raw in combinations]), [*others.values()])


def _place(spec: SweepFile, grid: str, name: str) -> str:
    """Where in the file a field was given."""
    if not name:
        return grid
    key = name.split(".")[0] if name not in spec.grid and not name.startswith("params.") else name
    index = re.match(r"grids\[(\d+)\]", grid)
    if index and key in spec.grids[int(index[1])]:
        return f"{grid}.{name}"
    return f"grid.{name}" if key in spec.grid else f"fixed.{name}"


def _varying(spec: SweepFile, raws: list[dict[str, Any]]) -> list[str]:
    """The fields that the file gives more than one value, in its order; what a preset says per method is not one."""
    keys = dict.fromkeys(k for place in (spec.fixed, spec.grid, *spec.grids) for k in place)
    return [k for k in keys if len({repr(raw.get(k)) for raw in raws}) > 1]


def _near_files(path: Path) -> str:
    shipped = sorted(p.stem for p in (path.parent if path.parent.is_dir() else Path("sweeps")).glob("*.yaml"))
    return did_you_mean(path.stem, shipped) if shipped else ""
