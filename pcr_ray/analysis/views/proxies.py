"""How much gradient the proxy of every class received in the last task: bars, old classes and new ones apart."""

from __future__ import annotations

from statistics import fmean

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from pcr_ray.analysis.results import Answer, Cell, label, scale
from pcr_ray.analysis.style import COLOURS, WIDE, grid_of, legend
from pcr_ray.analysis.views._plot import Plot
from pcr_ray.study.cells import Panel

COLUMNS = 2


def pictures(answer: Answer, panel: Panel, cells: list[Cell]) -> list[Plot]:
    data = {label(cell, answer.study): bars for cell in cells if (bars := shape(answer, cell))}
    if not data:
        return []
    new = {label(cell, answer.study): newest_classes(answer, cell) for cell in cells}
    caption = (
        "Cumulative gradient of every class's proxy in the last task, mean over the seeds; the newest classes apart"
    )
    small = scale(answer.study)
    caption += f", {small}" if small else ""
    return [Plot("proxy_gradients", caption, lambda width: draw(data, new, width))]


def shape(answer: Answer, cell: Cell) -> list[float]:
    """Mean over the seeds, by class in the order of arrival."""
    runs = [g for i in cell.trials if (g := answer.runs[i].proxy_gradients)]
    return [fmean(values) for values in zip(*runs)] if runs else []


def shares(answer: Answer, cell: Cell) -> list[float]:
    """Of the newest classes in the whole, in percent, one per seed."""
    newest = newest_classes(answer, cell)
    runs = [g for i in cell.trials if (g := answer.runs[i].proxy_gradients) and sum(g)]
    return [100 * sum(g[-newest:]) / sum(g) for g in runs]


def newest_classes(answer: Answer, cell: Cell) -> int:
    """How many classes the last task has: an equal share, as the stream cuts it."""
    tasks = answer.study.trials[cell.trials[0]].tasks or 1
    classes = len(shape(answer, cell))
    return classes - round((tasks - 1) * classes / tasks)


def draw(data: dict[str, list[float]], new: dict[str, int], width: float = WIDE) -> Figure:
    figure, grid = grid_of(len(data), width, COLUMNS, height=2.5)
    for axes, (name, values) in zip(grid.flat, data.items()):
        old = len(values) - new[name]
        share = sum(values[old:]) / sum(values) if sum(values) else 0.0
        axes.bar(range(1, old + 1), values[:old], color=COLOURS[0], label="old classes")
        axes.bar(range(old + 1, len(values) + 1), values[old:], color=COLOURS[1], label="newest classes")
        axes.set_title(f"{name}: {100 * share:.0f} % on the newest classes", fontsize=9)
        axes.grid(alpha=0.3, axis="y")
        axes.set_ylabel("sum of gradient norms", fontsize=8)
        axes.set_xlabel("class, in the order of arrival", fontsize=8)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    legend(figure, grid[0][0])
    return figure
