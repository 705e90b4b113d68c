"""A metric over x: one line per series with 95 % intervals, the paper's numbers as crosses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure

from pcr_ray.analysis import tables
from pcr_ray.analysis.results import Answer, Cell, Panel, label, x_field
from pcr_ray.analysis.stats import Estimate
from pcr_ray.analysis.style import legend, sort_key, style, within_percent


def pictures(answer: Answer, panel: Panel, cells: list[Cell]) -> list[tuple[str, str, Figure]]:
    xs, x_name, metric = tables.columns(answer, cells), x_field(answer.study), tables.metric_of(answer)
    if not x_name or len(xs) < 2:
        return []
    title = tables.heading(panel) or answer.study.name
    figure = draw(*shape(answer, cells), answer.names, xlabel=x_name, ylabel=metric.label, title=title)
    return [(f"{metric.name}_by_{x_name.replace('.', '_')}", f"{metric.label} by {x_name}", figure)]


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
    data: Mapping[str, Mapping[Any, Estimate]],
    across: Mapping[str, Estimate],
    paper: Mapping[str, Mapping[Any, float]],
    names: Sequence[str],
    *,
    xlabel: str,
    ylabel: str,
    title: str,
) -> Figure:
    """Series that ignore x are dotted levels. `names` are the series of the whole report: each keeps its look."""
    figure = Figure(figsize=(7, 4.4), layout="constrained")
    axes = figure.subplots()
    xs = sorted({x for points in data.values() for x in points}, key=sort_key)
    place = {x: i for i, x in enumerate(xs)}  # evenly spaced: batch sizes and buffers grow by factors
    for index, (name, points) in enumerate(data.items()):
        order = sorted(points, key=sort_key)
        look = style(names.index(name))
        step = min(0.03, 0.3 / len(data))
        dodge = step * (index - (len(data) - 1) / 2)  # intervals side by side, not on top of each other
        axes.errorbar(
            [place[x] + dodge for x in order],
            [points[x].mean for x in order],
            yerr=[points[x].ci or 0 for x in order],
            label=name,
            capsize=3,
            markersize=5,
            **look,
        )
        known = {x: v for x, v in paper.get(name, {}).items() if x in place}
        if known:
            crosses = [place[x] + dodge for x in known]
            axes.plot(crosses, list(known.values()), "x", color=look["color"], markersize=9)
    for name, level in across.items():
        colour = style(names.index(name))["color"]
        axes.axhline(level.mean, color=colour, linestyle=":", label=name)
        if level.ci is not None:
            axes.axhspan(level.mean - level.ci, level.mean + level.ci, color=colour, alpha=0.1, linewidth=0)
        for value in paper.get(name, {}).values():
            axes.plot(len(xs) - 0.6, value, "x", color=colour, markersize=9)
    if any(paper.values()):
        axes.plot([], [], "x", color="grey", label="paper")
    axes.set_xticks(range(len(xs)), [str(x) for x in xs])
    axes.set(xlabel=xlabel, ylabel=ylabel, title=title)
    within_percent(axes, ylabel)
    axes.grid(alpha=0.3)
    legend(figure, axes)
    return figure
