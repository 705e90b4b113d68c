"""Sweep files: from YAML to trials. Every problem of a file is reported at once, with its place. No ray, no torch.

A file is read with `yaml.safe_load`; nothing in it is ever evaluated.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from pcr_ray.config import FIELDS, TrialConfig
from pcr_ray.errors import InputError, problems_error
from pcr_ray.identity import identity
from pcr_ray.methods import METHODS
from pcr_ray.study.grid import adjusted, expand, is_field, matches, useless_rules
from pcr_ray.study.presets import PRESETS, preset_fields
from pcr_ray.study.reader import override, read_yaml, with_dotted_params
from pcr_ray.study.resolve import ConfigProblems, Problem, explain, resolve
from pcr_ray.study.schema import METRICS, SweepFile
from pcr_ray.text import did_you_mean

PAPER_KEYS = ("value", "ci", "head", "preset")  # of a row of the paper's numbers, beside fields of a trial


@dataclass(frozen=True)
class Sweep:
    """A validated sweep: its file's content, and its trials by identity in the file's order."""

    spec: SweepFile
    trials: dict[str, TrialConfig]
    collapsed: int = 0  # combinations that are the same trial as another one
    varying: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        return self.spec.name

    def trial_name(self, identity: str) -> str:
        """The fields that tell this trial from the sweep's others."""
        flat = self.trials[identity].flat()
        parts = [f"{k}={flat.get(k)}" for k in self.varying if k != "method" and flat.get(k) is not None]
        return " ".join([str(flat["method"]), *parts])

    def to_yaml(self, *, paper: bool = True) -> str:
        """The file as it was run, with overrides applied; without the paper's numbers it is short."""
        left_out = None if paper else {"report": {"paper"}}
        content = self.spec.model_dump(exclude_defaults=True, exclude=left_out)
        return yaml.safe_dump(content, sort_keys=False, allow_unicode=True)


def load(path: str | Path, overrides: list[str] | None = None) -> Sweep:
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
) -> Sweep:
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
    try:
        spec = _spec(content)
    except ValidationError as error:
        raise problems_error(where, problems + [str(p) for p in explain(error)]) from None
    problems += _check_names(spec)
    rules = [*spec.exclude, *(a.when for a in spec.adjust)]
    problems += [f"{place}: no trial of the file has {rule}" for place, rule in useless if rule in rules]
    combinations = expand(spec, problems)
    left = [(place, raw) for place, raw in combinations if not any(matches(raw, rule) for rule in spec.exclude)]
    if combinations and not left:
        problems.append("exclude: nothing is left to run")
    sweep = _resolve_all(spec, left, problems, doubles=stored or bool(overrides))
    sweep = _with_paper(sweep, folder, problems)
    if problems:
        raise problems_error(where, problems)
    return sweep


def _spec(content: Mapping[str, Any]) -> SweepFile:
    return SweepFile.model_validate({k: v for k, v in content.items() if k in SweepFile.model_fields})


def _slips(content: Mapping[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    try:
        return useless_rules(_spec(content))
    except ValidationError:
        return []  # said elsewhere


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
    if isinstance(spec.resources, str) and spec.resources != "auto":
        problems.append(f"resources: '{spec.resources}' is neither 'auto' nor a mapping with cpu and gpu")
    if not re.fullmatch(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*", spec.trainable):
        problems.append(f"trainable: '{spec.trainable}' is not of the form package.module:Class")
    for name in ("x", "series"):
        value = getattr(spec.report, name)
        if value and not is_field(value):
            problems.append(f"report.{name}: unknown field{did_you_mean(value, FIELDS)}")
    if spec.report.y not in METRICS:
        problems.append(f"report.y: unknown metric{did_you_mean(spec.report.y, list(METRICS))}")
    problems += [
        f"report.heads: '{h}' is neither softmax nor ncm" for h in spec.report.heads if h not in ("softmax", "ncm")
    ]
    if len(spec.report.heads) != len(set(spec.report.heads)) or not spec.report.heads:
        problems.append("report.heads: give softmax, ncm or both, each once")
    problems += [
        f"report.ncm: unknown method '{m}'{did_you_mean(m, METHODS.names())}"
        for m in spec.report.ncm or []
        if m not in METHODS
    ]
    return problems


def _resolve_all(
    spec: SweepFile, combinations: list[tuple[str, dict[str, Any]]], problems: list[str], *, doubles: bool
) -> Sweep:
    trials: dict[str, TrialConfig] = {}
    raws: dict[str, tuple[str, dict[str, Any]]] = {}
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
        if raw == raws[key][1] and not doubles:
            found[f"{place}: duplicates of trials in {raws[key][0]}; remove one of them"] += 1
    problems += [text if n == 1 else f"{text} ({n} trials)" for text, n in found.items()]
    return Sweep(spec, trials, collapsed, _varying(spec, [raw for _, raw in combinations]))


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


def _with_paper(sweep: Sweep, folder: Path | None, problems: list[str]) -> Sweep:
    """Replace the name of a CSV file of the paper's numbers by its rows."""
    rows = sweep.spec.report.paper
    if isinstance(rows, str):
        import pandas as pd

        try:
            frame = pd.read_csv((folder or Path()) / rows, comment="#")
        except (OSError, ValueError) as error:
            problems.append(f"report.paper: {rows} (beside the sweep file) cannot be read: {error}")
            return sweep
        rows = [{k: _whole(v) for k, v in row.items() if v == v} for row in frame.to_dict("records")]
    problems += [f"report.paper: a row without 'value': {row}" for row in rows if "value" not in row]
    problems += [
        f"report.paper: '{key}' is not a number in {row}"
        for row in rows
        for key in ("value", "ci")
        if key in row and (not isinstance(row[key], int | float) or isinstance(row[key], bool))
    ]
    odd = {k for row in rows for k in row if not is_field(k) and k not in PAPER_KEYS}
    problems += [f"report.paper: unknown column '{k}'{did_you_mean(k, FIELDS)}" for k in sorted(map(str, odd))]
    for row in rows if not odd else []:
        try:
            paper_trial(sweep.spec.model_copy(update={"adjust": []}), row)
        except ConfigProblems as error:
            problems.append(f"report.paper: {error} in {row}")
    report = sweep.spec.report.model_copy(update={"paper": rows})
    return replace(sweep, spec=sweep.spec.model_copy(update={"report": report}))


def _whole(value: Any) -> Any:
    """pandas reads a column of whole numbers with gaps as floats."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def paper_trial(spec: SweepFile, row: Mapping[str, Any]) -> TrialConfig | None:
    """The trial of which a row with a `preset` speaks, trained as this file trains such trials; raises ConfigProblems.

    A row without a preset speaks of all trials that have the fields it names: None.
    """
    name = row.get("preset")
    if name is None:
        return None
    if name not in PRESETS:
        raise ConfigProblems([Problem("preset", f"unknown preset '{name}'{did_you_mean(str(name), list(PRESETS))}")])
    fields = {k: v for k, v in row.items() if k not in PAPER_KEYS}
    return resolve(adjusted(spec, preset_fields(name, fields) | fields)[0])


def _near_files(path: Path) -> str:
    shipped = sorted(p.stem for p in (path.parent if path.parent.is_dir() else Path("sweeps")).glob("*.yaml"))
    return did_you_mean(path.stem, shipped) if shipped else ""
