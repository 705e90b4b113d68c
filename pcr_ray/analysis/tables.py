"""The cells of an answer as tables: panels, rows per series, columns per x, the paper's number beside ours."""

from __future__ import annotations

from typing import Any

from pcr_ray.analysis.render import Grid
from pcr_ray.analysis.results import ANY, Answer, Cell, Panel, label, x_field
from pcr_ray.analysis.style import sort_key
from pcr_ray.metrics import METRICS, Metric

MIXED = "†"  # a cell whose trials come from different code


def metric_of(answer: Answer) -> Metric:
    return METRICS[answer.study.spec.report.y]


def panels(answer: Answer) -> list[tuple[Panel, list[Cell]]]:
    """Cells by panel. A method that ignores a panel's field (no memory, so no buffer) appears in all of its panels."""
    keys = list(dict.fromkeys(c.panel for c in answer.cells))
    real = [k for k in keys if not any(_stands_for(k, other) for other in keys)]
    return [(k, [c for c in answer.cells if c.panel == k or _stands_for(c.panel, k)]) for k in real]


def _stands_for(panel: Panel, other: Panel) -> bool:
    pairs = [(a, b) for (_, a), (_, b) in zip(panel, other)]
    return panel != other and all(a in (b, ANY) for a, b in pairs)


def heading(panel: Panel) -> str:
    return ", ".join(f"{k} {v}" for k, v in panel)


def columns(answer: Answer, cells: list[Cell]) -> list[Any]:
    """The values of x; one that means "this method ignores it" is none where others exist."""
    xs = list(dict.fromkeys(c.x for c in cells))
    real = [x for x in xs if x != ANY]
    return sorted(real, key=sort_key) if real and x_field(answer.study) else xs


def table(answer: Answer, cells: list[Cell]) -> Grid:
    """One row per series and classifier, one column per x; the paper's number in brackets; the best bold."""
    xs, x_name, metric = columns(answer, cells), x_field(answer.study), metric_of(answer)
    rows: dict[str, dict[Any, Cell]] = {}
    for cell in cells:
        for x in xs if cell.x == ANY else [cell.x]:
            rows.setdefault(label(cell, answer.study), {})[x] = cell
    texts = [[name, *(_text(answer, row.get(x)) for x in xs)] for name, row in rows.items()]
    best = min if metric.lower_is_better else max
    bold = set()
    for j, x in enumerate(xs):
        means = {i: row[x].estimate.mean for i, row in enumerate(rows.values()) if x in row}
        if means:
            bold.add((best(means, key=means.__getitem__), j + 1))
    header = [answer.study.spec.report.series, *(f"{x_name} {x}" if x_name else metric.label for x in xs)]
    return Grid(header, texts, frozenset(bold))


def _text(answer: Answer, cell: Cell | None) -> str:
    if cell is None:
        return "-"
    found = cell.estimate
    text = str(found) if found.ci is None else f"{found}, n={found.n}"
    if answer.code_differences(cell):
        text += f" {MIXED}"
    if cell.paper:
        ci = f" ± {cell.paper['ci']:.1f}" if "ci" in cell.paper else ""
        text += f" [paper {cell.paper['value']:.1f}{ci}]"
    return text


def code_note(answer: Answer) -> str:
    """What the mark of mixed code means here; empty where no cell has it."""
    names = sorted({name for cell in answer.cells for name in answer.code_differences(cell)})
    if not names:
        return ""
    return (
        f"{MIXED} The trials of this cell were made by different code: {', '.join(names)}. "
        "`--rerun changed` runs those of other code than the current one again."
    )
