"""Sweep files: from YAML to trials. Every problem of a file is reported at once, with its place. No ray, no torch.

A file is read as `yaml.safe_load` does, within limits; nothing in it is ever evaluated.
"""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from pcr_ray import plugins
from pcr_ray.config import TrialConfig
from pcr_ray.errors import InputError, problems_error
from pcr_ray.identity import identity
from pcr_ray.study import checks, paper
from pcr_ray.study.grid import adjusted, excluded, expand, useless_rules, with_presets
from pcr_ray.study.reader import explain_yaml, override, read_text, read_yaml, with_dotted_params
from pcr_ray.study.resolve import ConfigProblems, explain, resolve
from pcr_ray.study.schema import ReportSpec, Resources, Search, SweepFile
from pcr_ray.text import count, did_you_mean

NESTED: dict[str, type[BaseModel]] = {"report": ReportSpec, "resources": Resources, "search": Search}
KEYS = {name: list(model.model_fields) for name, model in NESTED.items()}


@dataclass(frozen=True, repr=False)
class Study:
    """A validated sweep file: its content, and its trials by identity in the file's order."""

    spec: SweepFile
    trials: dict[str, TrialConfig]
    collapsed: int = 0  # combinations that are the same trial as another one
    varying: list[str] = field(default_factory=list)
    others: list[tuple[str, TrialConfig]] = field(default_factory=list)  # the same trials under other labels
    plugins: dict[str, list[str]] = field(default_factory=dict)  # modules by the folder that they come from
    place: Path | None = None  # the folder of its file

    @property
    def name(self) -> str:
        return self.spec.name

    def __repr__(self) -> str:
        over = f" over {', '.join(self.varying)}" if self.varying else ""
        return f"<study '{self.name}': {count(len(self.trials), 'trial')}{over}>"

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
        return yaml.safe_dump(content, sort_keys=False, allow_unicode=True, default_flow_style=None, width=120)


def load(path: str | Path, overrides: list[str] | None = None, more_plugins: Sequence[str] = ()) -> Study:
    """Read a sweep file and apply `--set` overrides; `more_plugins` come after those that the file names."""
    path, text = Path(path), ""
    try:
        text = read_text(path)
        content = read_yaml(text)
    except FileNotFoundError:
        raise InputError(f"sweep file {path} does not exist{_near_files(path)}") from None
    except (OSError, ValueError) as error:  # not UTF-8; a NUL in the path
        raise InputError(f"sweep file {path} cannot be read: {error}") from None
    except yaml.YAMLError as error:
        raise InputError(f"sweep file {path} is not valid YAML: {explain_yaml(error, text)}") from None
    return parse(content, str(path), overrides or [], folder=path.absolute().parent, more_plugins=more_plugins)


def parse(
    content: Any,
    where: str,
    overrides: list[str] | None = None,
    folder: Path | None = None,
    *,
    more_plugins: Sequence[str] = (),
    stored: bool = False,
) -> Study:
    """Validate a sweep file's content and expand it; raises one `InputError` with all problems.

    Overrides may leave a rule without use, or grids with the same trials. That holds for a `stored` file too: its
    overrides are applied already. Nothing that it names is imported: whoever can write to the store could run code as
    everyone who looks.
    """
    if not isinstance(content, dict):
        kinds = {"NoneType": "nothing", "str": "text", "list": "a list"}
        got = kinds.get(type(content).__name__, repr(content))
        raise InputError(f"{where}: expected a mapping with 'name' and 'grid', got {got}")
    content = with_dotted_params(content)
    useless = [] if stored else _slips(content)
    for text in overrides or []:
        override(content, text)
    modules = {} if stored else _load_plugins(content, where, folder, more_plugins)
    problems = checks.unknown_keys(content)
    spec = _with_series(_spec_or_problems(content, problems))
    problems += checks.of_names(spec)
    rules = [*spec.exclude, *(a.when for a in spec.adjust)]
    problems += [f"{place}: no trial of the file has {rule}" for place, rule in useless if rule in rules]
    combinations = expand(spec, problems)
    left = [(place, given) for place, given in combinations if not excluded(spec, given)]
    if combinations and not left:
        problems.append("exclude: nothing is left to run")
    spec = paper.with_rows(spec, folder, problems)
    changed = stored or bool(overrides)
    study = replace(_resolve_all(spec, left, problems, doubles=changed), plugins=modules, place=folder)
    trials = study.trials.values()
    problems += checks.of_search(spec, trials) + ([] if changed else checks.of_trials(spec, trials))
    if problems and stored and spec.plugins:
        raise InputError(f"{problems_error(where, problems)}\n  {_not_imported(spec.plugins)}")
    if problems:
        raise problems_error(where, problems)
    return study


def _with_series(spec: SweepFile) -> SweepFile:
    """Where x is what the rows would be, and the file names no series: the rows are what else the grid varies."""
    report = spec.report
    if report.x != report.series or "series" in report.model_fields_set:
        return spec
    others = [field for grid in (spec.grid, *spec.grids) for field in grid if field not in (report.x, "seed")]
    series = {"series": others[0] if others else "dataset"}
    return spec.model_copy(update={"report": report.model_copy(update=series)})


def _load_plugins(
    content: dict[str, Any], where: str, folder: Path | None, more: Sequence[str]
) -> dict[str, list[str]]:  # fmt: skip
    """Import what the file names, from its place, and what the command names, from here; both absolute from now on."""
    named = content.get("plugins") or []
    if not isinstance(named, list) or not all(isinstance(p, str) for p in named):
        return {}  # the schema says what is wrong
    if not named and not more:
        return {}
    try:
        places = [plugins.absolute(p, folder or Path.cwd()) for p in named]
        places += [plugins.absolute(p, Path.cwd()) for p in more]
        content["plugins"] = list(dict.fromkeys(places))
        return plugins.load(content["plugins"], folder)
    except InputError as error:
        raise InputError(f"{where}: {error}") from None


def _not_imported(named: Sequence[str]) -> str:
    options = " ".join(f"--plugins {shlex.quote(name)}" for name in named)
    return (
        "It names plugins, and code that a store names is not imported: name the sweep's own file instead, or add "
        f"what you trust: {options}"
    )


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


def _resolve_all(
    spec: SweepFile, combinations: list[tuple[str, dict[str, Any]]], problems: list[str], *, doubles: bool
) -> Study:
    trials: dict[str, TrialConfig] = {}
    raws: dict[str, tuple[str, dict[str, Any]]] = {}
    others: dict[tuple[str, str], tuple[str, TrialConfig]] = {}
    found: Counter[str] = Counter()
    collapsed = 0
    for place, given in combinations:
        raw = with_presets(spec, given)
        try:
            fields, origins = adjusted(spec, given, chosen=True)
            config = resolve(with_presets(spec, fields))
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
    varying = _varying(spec, [with_presets(spec, given) for _, given in combinations])
    return Study(spec, trials, collapsed, varying, [*others.values()])


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
    for meant in (Path(f"{path}.yaml"), Path("sweeps", f"{path.stem}.yaml")):  # the name, as other commands take it
        if meant.is_file():
            return f"; did you mean '{meant}'?"
    shipped = sorted(p.stem for p in (path.parent if path.parent.is_dir() else Path("sweeps")).glob("*.yaml"))
    return did_you_mean(path.stem, shipped) if shipped else ""
