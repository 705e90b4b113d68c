"""Accuracy after each task: one small plot per x, one line per series, 95 % intervals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from pcr_ray.analysis import tables
from pcr_ray.analysis.results import Answer, Cell, label, scale
from pcr_ray.analysis.stats import estimate
from pcr_ray.analysis.style import FEW, WIDE, Looks, grid_of, looks, name_series, within_percent
from pcr_ray.analysis.views._plot import Plot
from pcr_ray.study.cells import Panel, x_field

PLOTS = 9  # of at most so many x values: more are too small to read

Stages = Mapping[str, Mapping[str, Sequence[Sequence[float]]]]  # heading of a plot -> series -> one curve per seed


def pictures(answer: Answer, panel: Panel, cells: list[Cell]) -> list[Plot]:
    xs, x_name = tables.columns(answer, cells), x_field(answer.study)
    stages = shape(answer, cells)
    if not any(len(run) > 1 for series in stages.values() for runs in series.values() for run in runs):
        return []
    some = f" ({PLOTS} of {len(xs)} values of {x_name})" if len(xs) > PLOTS else ""
    parts = (f"Accuracy on the tasks seen so far{some}", tables.heading(panel), scale(answer.study))
    title = ", ".join(part for part in parts if part)

    def at(width: float) -> Figure:
        return draw(stages, looks(answer), ylabel="average accuracy in %", title=title, width=width)

    return [Plot("learning_curves", f"Average accuracy after each task{some}, {tables.drawn(answer)}", at)]


def shape(
    answer: Answer, cells: list[Cell], metric: str = "average_accuracy"
) -> dict[str, dict[str, list[list[float]]]]:
    xs, x_name = some_of(tables.columns(answer, cells)), x_field(answer.study)
    stages: dict[str, dict[str, list[list[float]]]] = {f"{x_name} {x}" if x_name else "": {} for x in xs}
    for cell in cells:
        runs = answer.curves_of(cell, metric)
        for x in xs if cell.x not in tables.columns(answer, cells) else [cell.x]:
            place = f"{x_name} {x}" if x_name else ""
            if place in stages and runs:
                stages[place].setdefault(label(cell, answer.study), []).extend(runs)
    return stages


def some_of(xs: Sequence[Any]) -> list[Any]:
    """At most PLOTS of them, from the first to the last, evenly."""
    if len(xs) <= PLOTS:
        return list(xs)
    return [xs[round(i * (len(xs) - 1) / (PLOTS - 1))] for i in range(PLOTS)]


def draw(
    panels: Stages, styles: Looks, *, ylabel: str, title: str, first_task: int = 1, width: float = WIDE
) -> Figure:  # fmt: skip
    figure, grid = grid_of(len(panels), width, most=3, height=2.6 if len(panels) > 1 else max(3.0, 0.5 * width))
    ends = {}
    for axes, (heading, series) in zip(grid.flat, panels.items()):
        for name, runs in series.items():
            points = [estimate([run[t] for run in runs]) for t in range(min(map(len, runs)))]
            tasks, means = range(first_task, len(points) + first_task), [p.mean for p in points]
            axes.plot(tasks, means, label=name, markersize=4, **styles[name].line)
            ends[name] = (tasks[-1], means[-1])
            shown = points if len(series) <= FEW else points[-1:]  # the last only, where bands would hide the lines
            low, high = ([p.mean + sign * (p.ci or 0) for p in shown] for sign in (-1, 1))
            if len(series) <= FEW:
                axes.fill_between(tasks, low, high, color=styles[name].colour, alpha=0.12, linewidth=0)
            else:
                axes.vlines(tasks[-1:], low, high, color=styles[name].faint, linewidth=1)
        axes.set_title(heading, fontsize=9)
        axes.set_xlabel("tasks learned", fontsize=9)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.grid(alpha=0.3)
        within_percent(axes, ylabel)
    _share_y(list(grid.flat)[: len(panels)])
    for row in grid:
        row[0].set_ylabel(ylabel, fontsize=9)
    figure.suptitle(title, fontsize=10, wrap=True)
    name_series(figure, ends, styles, *list(grid.flat)[: len(panels)])
    return figure


def _share_y(plots: Sequence[Any]) -> None:
    low, high = min(p.get_ylim()[0] for p in plots), max(p.get_ylim()[1] for p in plots)
    for plot in plots:
        plot.set_ylim(low, high)
