"""Figures of a report. A series looks the same in all of them: `names` are those of the whole report, in its order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from pcr_ray.analysis.stats import Estimate, estimate

# Okabe and Ito's palette, readable with colour-blindness, with markers as a second cue.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#999999")
MARKERS = "osD^vPX*"


def style(index: int) -> dict[str, Any]:
    return {
        "color": COLOURS[index % len(COLOURS)],
        "marker": MARKERS[(index + index // len(COLOURS)) % len(MARKERS)],
        "linestyle": ("-", "--", "-.", ":")[index // len(COLOURS) % 4],
    }


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
    """A line a series with 95 % intervals; series that ignore x as dotted levels; the paper's numbers as crosses."""
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
    _within_percent(axes, ylabel)
    axes.grid(alpha=0.3)
    _legend(figure, axes)
    return figure


def curves(
    panels: Mapping[str, Mapping[str, Sequence[Sequence[float]]]], names: Sequence[str], *, ylabel: str, title: str
) -> Figure:
    """Average accuracy after each task; one small plot a panel, a line a series, the band is the 95 % interval."""
    columns = min(3, len(panels))
    rows = -(-len(panels) // columns)
    figure = Figure(figsize=(1.2 + 3.6 * columns, 0.8 + 3.0 * rows), layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False, sharey=True)
    for axes, (heading, series) in zip(grid.flat, panels.items()):
        for name, runs in series.items():
            points = [estimate([run[t] for run in runs]) for t in range(min(map(len, runs)))]
            tasks, means = range(1, len(points) + 1), [p.mean for p in points]
            look = style(names.index(name))
            axes.plot(tasks, means, label=name, markersize=4, **look)
            low, high = ([p.mean + sign * (p.ci or 0) for p in points] for sign in (-1, 1))
            axes.fill_between(tasks, low, high, color=look["color"], alpha=0.15, linewidth=0)
        axes.set_title(heading, fontsize=9)
        axes.set_xlabel("tasks learned")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.grid(alpha=0.3)
    for axes in list(grid.flat)[len(panels) :]:
        axes.axis("off")
    grid[0][0].set_ylabel(ylabel)
    _within_percent(grid[0][0], ylabel)
    _legend(figure, *grid.flat)
    figure.suptitle(title, fontsize=10)
    return figure


def _legend(figure: Figure, *plots: Any) -> None:
    """In the first plot, or below them all in a strip of its own where there are many series."""
    found = [plot.get_legend_handles_labels() for plot in plots]
    series = {label: handle for handles, labels in found for handle, label in zip(handles, labels)}
    if len(series) <= len(COLOURS):
        plots[0].legend(series.values(), series.keys(), fontsize=8)
        return
    columns = max(3, int(figure.get_figwidth() / 1.3))
    figure.set_figheight(figure.get_figheight() + 0.3 + 0.2 * -(-len(series) // columns))
    figure.legend(series.values(), series.keys(), loc="outside lower center", ncols=columns, fontsize=8)


def _within_percent(axes: Any, ylabel: str) -> None:
    """Intervals of few seeds reach beyond what a percentage can be."""
    if "%" in ylabel:
        low, high = axes.get_ylim()
        axes.set_ylim(max(0, low), min(100, high))


def sort_key(value: Any) -> tuple[int, Any]:
    return (0, value) if isinstance(value, int | float) else (1, str(value))
