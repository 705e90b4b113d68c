"""A metric over x: one line per series with 95 % intervals, the paper's numbers as crosses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from matplotlib.figure import Figure

from pcr_ray.analysis import tables
from pcr_ray.analysis.results import Answer, Cell, label, scale
from pcr_ray.analysis.stats import Estimate
from pcr_ray.analysis.style import MANY, WIDE, Looks, beside, looks, name_series, set_x, set_y
from pcr_ray.analysis.views._plot import Plot
from pcr_ray.study.cells import Panel, x_field

Points = Mapping[str, Mapping[Any, Estimate]]  # series -> x -> estimate


def pictures(answer: Answer, panel: Panel, cells: list[Cell]) -> list[Plot]:
    xs, x_name, metric = tables.columns(answer, cells), x_field(answer.study), tables.metric_of(answer)
    if not x_name or len(xs) < 2:
        return []
    title = ", ".join(part for part in (tables.heading(panel) or answer.study.name, scale(answer.study)) if part)
    data, across, paper = shape(answer, cells)

    def at(width: float) -> Figure:
        names = {"xlabel": x_name, "ylabel": metric.label, "title": title}
        return draw(data, across, paper, looks(answer), width=width, **names)

    what = tables.drawn(answer) if len(data) <= MANY else "mean (the intervals are in the table)"
    caption = f"{metric.label} by {x_name}, {what}" + ("; crosses: the paper" if paper else "")
    return [Plot(f"{metric.name}_by_{x_name.replace('.', '_')}", caption, at)]


def shape(
    answer: Answer, cells: list[Cell]
) -> tuple[dict[str, dict[Any, Estimate]], dict[str, Estimate], dict[str, dict[Any, float]]]:
    """By series: points over x, levels of those that ignore x, and the paper's numbers."""
    xs = tables.columns(answer, cells)
    data: dict[str, dict[Any, Estimate]] = {}
    across: dict[str, Estimate] = {}
    paper: dict[str, dict[Any, float]] = {}
    for cell in cells:
        name = label(cell, answer.study)
        if cell.x in xs:
            data.setdefault(name, {})[cell.x] = cell.estimate
        else:
            across[name] = cell.estimate
        if cell.paper:
            paper.setdefault(name, {})[cell.x] = cell.paper["value"]
    return data, across, paper


def draw(
    data: Points,
    across: Mapping[str, Estimate],
    paper: Mapping[str, Mapping[Any, float]],
    styles: Looks,
    *,
    xlabel: str,
    ylabel: str,
    title: str,
    width: float = WIDE,
) -> Figure:
    """Series that ignore x are dotted levels."""
    figure = Figure(figsize=(width, max(3.4, 0.58 * width)), layout="constrained")
    axes = figure.subplots()
    xs = sorted({x for points in data.values() for x in points}, key=tables.sort_key)
    place = set_x(axes, xs)
    ends, heights = {}, [value for known in paper.values() for value in known.values()]
    bars = len(data) <= MANY
    for index, (name, points) in enumerate(data.items()):
        order = sorted(points, key=tables.sort_key)
        moved = beside(axes, index, len(data)) if bars else axes.transData
        half = [points[x].ci or 0 if bars else 0 for x in order]
        heights += [points[x].mean + sign * ci for x, ci in zip(order, half) for sign in (-1, 1)]
        axes.errorbar(
            [place[x] for x in order], [points[x].mean for x in order], yerr=half if bars else None,
            label=name, markersize=5, elinewidth=1, capsize=2, ecolor=styles[name].faint, transform=moved,
            **styles[name].line,
        )  # fmt: skip
        ends[name] = (place[order[-1]], points[order[-1]].mean)
        known = {x: v for x, v in paper.get(name, {}).items() if x in place}
        crosses = [place[x] for x in known]
        axes.plot(crosses, [*known.values()], "x", color=styles[name].colour, markersize=8, transform=moved)
    for name, level in across.items():
        _level(axes, name, level, paper.get(name, {}), styles[name].colour)
        heights.append(level.mean)
        ends[name] = (place[xs[-1]] if xs else 0.0, level.mean)
    if any(paper.values()):
        axes.plot([], [], "x", color="grey", label="paper")
    axes.set(xlabel=xlabel, ylabel=ylabel)
    axes.set_title(title, fontsize=10, wrap=True)
    set_y(axes, heights, ylabel)
    axes.grid(alpha=0.3)
    name_series(figure, ends, styles, axes)
    return figure


def _level(axes: Any, name: str, level: Estimate, paper: Mapping[Any, float], colour: str) -> None:
    axes.axhline(level.mean, color=colour, linestyle=":", label=name)
    if level.ci is not None:
        axes.axhspan(level.mean - level.ci, level.mean + level.ci, color=colour, alpha=0.1, linewidth=0)
    for value in paper.values():
        axes.plot(0.99, value, "x", color=colour, markersize=8, transform=axes.get_yaxis_transform())
