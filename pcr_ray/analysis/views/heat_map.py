"""The mean accuracy matrix of every series: accuracy on each task after each task."""

from __future__ import annotations

from statistics import fmean
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from pcr_ray.analysis.results import Answer, Cell, label, scale
from pcr_ray.analysis.style import WIDE, grid_of
from pcr_ray.analysis.views._plot import Plot
from pcr_ray.metrics import Matrix
from pcr_ray.study.cells import Panel, x_field
from pcr_ray.tracking.trial_files import READABLE

COLUMNS = 3


def pictures(answer: Answer, panel: Panel, cells: list[Cell]) -> list[Plot]:
    matrices = {name: matrix for cell in cells if (matrix := shape(answer, cell)) for name in [_name(answer, cell)]}
    if not matrices:
        return []
    caption = "Mean accuracy on each task (columns) after each task (rows), in %"
    small = scale(answer.study)
    caption += f", {small}" if small else ""
    return [Plot("accuracy_matrices", caption, lambda width: draw(matrices, width))]


def _name(answer: Answer, cell: Cell) -> str:
    x_name = x_field(answer.study)
    return f"{label(cell, answer.study)}, {x_name} {cell.x}" if x_name else label(cell, answer.study)


def shape(answer: Answer, cell: Cell) -> Matrix:
    """Row i has the mean over the seeds of the accuracy on tasks 1 to i; empty where the curves are not known."""
    columns: list[Matrix] = []  # per task, per seed: its accuracy from that task on
    while runs := answer.curves_of(cell, f"accuracy_task_{len(columns) + 1}"):
        columns.append(runs)
    return [[fmean(run[i - j] for run in columns[j]) for j in range(i + 1)] for i in range(len(columns))]


def draw(matrices: dict[str, Matrix], width: float = WIDE) -> Figure:
    side = width / (COLUMNS if width >= WIDE else 1)
    figure, grid = grid_of(len(matrices), width, COLUMNS, height=min(side, 3.6))
    for axes, (name, matrix) in zip(grid.flat, matrices.items()):
        image = draw_matrix(axes, matrix)
        axes.set_title(name, fontsize=8)
    figure.colorbar(image, ax=grid, shrink=0.7)
    return figure


def draw_matrix(axes: Any, matrix: Matrix) -> Any:
    """Accuracies as colours and numbers, one row per task learned."""
    values = np.full((len(matrix), len(matrix)), np.nan)
    for i, row in enumerate(matrix):
        values[i, : len(row)] = row
    image = axes.imshow(values, vmin=0, vmax=100, cmap="viridis")
    for i, row in enumerate(matrix if len(matrix) <= READABLE else []):
        for j, a in enumerate(row):
            axes.text(j, i, f"{a:.0f}", ha="center", va="center", color="white" if a < 60 else "black", fontsize=7)
    ticks = range(0, len(matrix), -(-len(matrix) // READABLE))
    axes.set_xticks(ticks, [str(i + 1) for i in ticks], fontsize=8)
    axes.set_yticks(ticks, [str(i + 1) for i in ticks], fontsize=8)
    return image
