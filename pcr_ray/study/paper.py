"""The paper's numbers in a sweep file: rows of a CSV file beside it, or written out, and which trials they speak of."""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pcr_ray.config import FIELDS, TrialConfig
from pcr_ray.metrics import SOFTMAX
from pcr_ray.study.grid import adjusted, is_field
from pcr_ray.study.presets import PRESETS
from pcr_ray.study.reader import MOST_DIGITS, read_text
from pcr_ray.study.resolve import ConfigProblems, Problem, resolve
from pcr_ray.study.schema import SweepFile
from pcr_ray.text import did_you_mean

KEYS = ("value", "ci", "classifier", "preset")  # of a row, beside fields of a trial
WITHOUT_EFFECT = ("seed", "proxy_gradients", *TrialConfig.labels)  # on whether a trial is the paper's

Row = Mapping[str, Any]


def with_rows(spec: SweepFile, folder: Path | None, problems: list[str]) -> SweepFile:
    """The file with the name of a CSV file replaced by its rows; what is wrong with them goes into `problems`."""
    rows: Any = spec.report.paper
    if isinstance(rows, str):
        try:
            rows = _read((folder or Path()) / rows)
        except (OSError, ValueError, csv.Error) as error:
            missing = isinstance(error, FileNotFoundError)
            why = "does not exist (looked for beside the sweep file)" if missing else f"cannot be read as CSV: {error}"
            problems.append(f"report.paper: {rows} {why}")
            return spec.model_copy(update={"report": spec.report.model_copy(update={"paper": []})})
    problems += [f"report.paper: a row without 'value': {row}" for row in rows if "value" not in row]
    problems += [
        f"report.paper: '{key}' is not a number in {row}"
        for row in rows
        for key in ("value", "ci")
        if key in row and not _is_number(row[key])
    ]
    odd = {k for row in rows for k in row if not is_field(k) and k not in KEYS}
    problems += [f"report.paper: unknown column '{k}'{did_you_mean(k, FIELDS)}" for k in sorted(map(str, odd))]
    for row in rows if not odd else []:
        try:
            trial_of(spec.model_copy(update={"adjust": []}), row)
        except ConfigProblems as error:
            problems.append(f"report.paper: {error} in {row}")
    return spec.model_copy(update={"report": spec.report.model_copy(update={"paper": rows})})


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _read(file: Path) -> list[dict[str, Any]]:
    """Rows of a CSV file; empty cells are left out, lines that begin with # are comments."""
    lines = [line for line in read_text(file).splitlines() if line.strip() and line[0] != "#"]
    table = csv.DictReader(lines, strict=True)
    if "value" not in (table.fieldnames or []):
        raise ValueError("it has no column 'value'")
    rows = list(table)
    if any(None in row for row in rows):
        raise ValueError("a row has more cells than there are columns")
    return [{k: _value(v) for k, v in row.items() if v} for row in rows]


def _value(text: str) -> Any:
    for kind in (int, float) if len(text) <= MOST_DIGITS else ():
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def trial_of(spec: SweepFile, row: Row) -> TrialConfig | None:
    """The trial of which a row with a `preset` speaks, trained as this file trains such trials; raises ConfigProblems.

    A row without a preset speaks of all trials that have the fields it names: None.
    """
    name = row.get("preset")
    if name is None:
        return None
    if not isinstance(name, str) or name not in PRESETS:
        raise ConfigProblems([Problem("preset", f"unknown preset '{name}'{did_you_mean(str(name), list(PRESETS))}")])
    fields = {k: v for k, v in row.items() if k not in KEYS}
    own = {"preset": name}  # also where the file gives such trials another
    return resolve(adjusted(spec.model_copy(update={"presets": []}), fields | own)[0] | own)


def row_of(spec: SweepFile, trial: TrialConfig, classifier: str) -> Row | None:
    """The paper's final accuracy for a trial, where every field that its row names agrees.

    With a preset a row names them all: other tasks, heads or learning rates are not the paper's.
    """
    flat, rows = trial.flat(), spec.report.paper
    assert not isinstance(rows, str)  # it was read with the sweep file
    for row in rows:
        fields = {k: v for k, v in row.items() if k not in KEYS}
        if row.get("classifier", SOFTMAX.name) == classifier and all(flat.get(k) == v for k, v in fields.items()):
            theirs = trial_of(spec, row)
            if theirs is None or _alike(trial, theirs):
                return row
    return None


def _alike(trial: TrialConfig, other: TrialConfig) -> bool:
    """The same but for what has no effect on whose number stands beside whose."""
    return trial.model_copy(update={k: getattr(other, k) for k in WITHOUT_EFFECT}) == other
