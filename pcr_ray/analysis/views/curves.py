"""Accuracy after each task: one small plot per x, one line per series, a band for the 95 % interval."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from pcr_ray.analysis.stats import estimate
from pcr_ray.analysis.style import legend, style, within_percent


def curves(
    panels: Mapping[str, Mapping[str, Sequence[Sequence[float]]]], names: Sequence[str], *, ylabel: str, title: str
) -> Figure:
    """Heading of a plot -> series -> one curve per seed."""
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
    within_percent(grid[0][0], ylabel)
    legend(figure, *grid.flat)
    figure.suptitle(title, fontsize=10)
    return figure
