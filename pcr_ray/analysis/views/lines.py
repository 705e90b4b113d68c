"""A metric over x: one line per series with 95 % intervals, the paper's numbers as crosses.

`names` are the series of the whole report, in its order, so that each looks the same in every figure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure

from pcr_ray.analysis.stats import Estimate
from pcr_ray.analysis.style import legend, sort_key, style, within_percent


def lines(
    data: Mapping[str, Mapping[Any, Estimate]],
    across: Mapping[str, Estimate],
    paper: Mapping[str, Mapping[Any, float]],
    names: Sequence[str],
    *,
    xlabel: str,
    ylabel: str,
    title: str,
) -> Figure:
    """Series that ignore x are dotted levels."""
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
