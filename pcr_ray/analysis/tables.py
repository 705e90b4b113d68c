"""The cells of an answer as tables: panels, rows per series, columns per x, our number over the paper's."""

from __future__ import annotations

from typing import Any

from pcr_ray.analysis.render import Grid
from pcr_ray.analysis.results import Answer, Cell, label
from pcr_ray.analysis.stats import Estimate, estimate
from pcr_ray.metrics import METRICS, Metric
from pcr_ray.study.cells import ANY, Key, Panel, cell_key, expected_classifiers, x_field

MIXED = "†"  # a cell whose trials come from different code


def metric_of(answer: Answer) -> Metric:
    return METRICS[answer.metric]


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


def sort_key(value: Any) -> tuple[int, Any]:
    return (0, value) if isinstance(value, int | float) else (1, str(value))


def columns(answer: Answer, cells: list[Cell]) -> list[Any]:
    """The values of x; one that means "this method ignores it" is none where others exist."""
    xs = list(dict.fromkeys(c.x for c in cells))
    real = [x for x in xs if x != ANY]
    return sorted(real, key=sort_key) if real and x_field(answer.study) else xs


def failed_cells(answer: Answer, cells: list[Cell]) -> list[Cell]:
    """Of the panels of these cells: those without a number because their trials failed."""
    known = {(c.panel, c.series, c.classifier, c.x) for c in answer.cells}
    found: dict[Key, Cell] = {}
    for trial in [answer.study.trials[identity] for identity in answer.failed]:
        for name in expected_classifiers(answer.study.spec.report, trial, answer.metric):
            key = cell_key(answer.study, trial, name)
            if key not in known and any(key[0] == c.panel or _stands_for(key[0], c.panel) for c in cells):
                found[key] = Cell(*key, {}, None)
    return list(found.values())


def table(answer: Answer, cells: list[Cell]) -> Grid:
    """One row per series and classifier, one column per x; the best bold, the second underlined."""
    cells = [*cells, *failed_cells(answer, cells)]
    xs, x_name, metric = columns(answer, cells), x_field(answer.study), metric_of(answer)
    rows: dict[str, dict[Any, Cell]] = {}
    for cell in cells:
        for x in xs if cell.x == ANY else [cell.x]:
            rows.setdefault(label(cell, answer.study), {})[x] = cell
    shown = common_seeds(answer)
    texts = [[name, *(_text(answer, row.get(x), shown) for x in xs)] for name, row in rows.items()]
    sign = 1 if metric.lower_is_better else -1
    bold, second = set(), set()
    for j, x in enumerate(xs, start=1):
        means = {i: sign * row[x].estimate.mean for i, row in enumerate(rows.values()) if x in row and row[x].values}
        ranked = sorted(means, key=means.__getitem__) if len(means) > 1 else []
        bold |= {(i, j) for i in ranked[:1]}
        second |= {(i, j) for i in ranked[1:2]}
    header = [answer.study.spec.report.series, *(f"{x_name} {x}" if x_name else metric.label for x in xs)]
    return Grid(header, texts, frozenset(bold), frozenset(second))


def common_seeds(answer: Answer) -> int | None:
    """The number of seeds where all cells have the same: then it is said once, not in every cell."""
    counts = {cell.estimate.n for cell in answer.cells}
    return counts.pop() if len(counts) == 1 else None


def seeds(answer: Answer) -> str:
    """What stands in the cells: `mean ± 95 % confidence interval (t distribution) of 10 seeds`."""
    n = common_seeds(answer)
    if n == 1:
        return "one seed (n = 1), so no confidence interval"
    return "mean ± 95 % confidence interval (t distribution) " + (f"over {n} seeds" if n else "over n seeds")


def drawn(answer: Answer) -> str:
    """What a figure's lines are, for its caption."""
    return "one seed" if common_seeds(answer) == 1 else "mean and 95 % interval"


def _text(answer: Answer, cell: Cell | None, common: int | None) -> str:
    if cell is None:
        return "-"
    if not cell.values:
        return "failed"
    text = number(cell.estimate) + ("" if common else f", n={cell.estimate.n}")
    if answer.code_differences(cell):
        text += f" {MIXED}"
    if cell.paper:
        ci = f" ± {cell.paper['ci']:.1f}" if "ci" in cell.paper else ""
        text += f"\npaper {cell.paper['value']:.1f}{ci}"
    return text


def number(found: Estimate) -> str:
    return f"{found.mean:.1f}" if found.ci is None else f"{found.mean:.1f} ± {found.ci:.1f}"


def details(answer: Answer, cells: list[Cell]) -> Grid | None:
    """The report's further metrics in one wide table, one row per cell; None where nothing of them is recorded."""
    frame, x_name = answer.frame, x_field(answer.study)
    names = [name for name in answer.study.spec.report.columns if len(frame) and frame[name].notna().any()]
    if not names or not cells:
        return None
    numbers = frame.set_index(["trial", "classifier"])[names]
    rows = []
    for cell in sorted(cells, key=lambda c: sort_key(c.x)):
        own = numbers.loc[[(i, cell.classifier) for i in cell.trials]]
        texts = [number(estimate(own[name].dropna().tolist())) if own[name].notna().any() else "-" for name in names]
        rows.append([label(cell, answer.study), *([str(cell.x)] if x_name else []), number(cell.estimate), *texts])
    titles = [METRICS[name].label for name in (answer.metric, *names)]
    return Grid([answer.study.spec.report.series, *([x_name] if x_name else []), *titles], rows)


def code_note(answer: Answer) -> str:
    """What the mark of mixed code means here; empty where no cell has it."""
    names = sorted({name for cell in answer.cells for name in answer.code_differences(cell)})
    if not names:
        return ""
    return (
        f"{MIXED} The trials of this cell were made by different code: {', '.join(names)}. "
        "`--rerun changed` runs those of other code than the current one again."
    )
