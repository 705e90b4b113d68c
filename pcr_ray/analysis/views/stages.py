"""Accuracy after each task: one small plot per x, one line per series, a band for the 95 % interval."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from pcr_ray.analysis import tables
from pcr_ray.analysis.results import Answer, Cell, Panel, label, x_field
from pcr_ray.analysis.stats import estimate
from pcr_ray.analysis.style import legend, style, within_percent

PLOTS = 9  # of at most so many x values: more are too small to read

Stages = Mapping[str, Mapping[str, Sequence[Sequence[float]]]]  # heading of a plot -> series -> one curve per seed


def pictures(answer: Answer, panel: Panel, cells: list[Cell]) -> list[tuple[str, str, Figure]]:
    xs, x_name = tables.columns(answer, cells), x_field(answer.study)
    stages = shape(answer, cells)
    if not any(len(run) > 1 for series in stages.values() for runs in series.values() for run in runs):
        return []
    first = f" (the first {PLOTS} of {len(xs)} values of {x_name})" if len(xs) > PLOTS else ""
    title = f"Accuracy on the tasks seen so far{first}"
    figure = draw(stages, answer.names, ylabel="average accuracy in %", title=title)
    return [("learning_curves", f"Average accuracy after each task{first}", figure)]


def shape(
    answer: Answer, cells: list[Cell], metric: str = "average_accuracy"
) -> dict[str, dict[str, list[list[float]]]]:
    xs, x_name = tables.columns(answer, cells), x_field(answer.study)
    stages: dict[str, dict[str, list[list[float]]]] = {f"{x_name} {x}" if x_name else "": {} for x in xs[:PLOTS]}
    for cell in cells:
        runs = answer.curves_of(cell, metric)
        for x in xs[:PLOTS] if cell.x not in xs else [cell.x]:
            place = f"{x_name} {x}" if x_name else ""
            if place in stages and runs:
                stages[place].setdefault(label(cell, answer.study), []).extend(runs)
    return stages


def draw(panels: Stages, names: Sequence[str], *, ylabel: str, title: str, first_task: int = 1) -> Figure:
    columns = min(3, len(panels))
    rows = -(-len(panels) // columns)
    figure = Figure(figsize=(1.2 + 3.6 * columns, 0.8 + 3.0 * rows), layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False, sharey=True)
    for axes, (heading, series) in zip(grid.flat, panels.items()):
        for name, runs in series.items():
            points = [estimate([run[t] for run in runs]) for t in range(min(map(len, runs)))]
            tasks, means = range(first_task, len(points) + first_task), [p.mean for p in points]
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
