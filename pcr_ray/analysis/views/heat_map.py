"""The mean accuracy matrix of every series: accuracy on each task after each task."""

from __future__ import annotations

from statistics import fmean

from matplotlib.figure import Figure

from pcr_ray.analysis.results import Answer, Cell, Panel, label, x_field
from pcr_ray.metrics import Matrix
from pcr_ray.tracking.trial_files import draw_matrix

COLUMNS = 3


def pictures(answer: Answer, panel: Panel, cells: list[Cell]) -> list[tuple[str, str, Figure]]:
    matrices = {name: matrix for cell in cells if (matrix := shape(answer, cell)) for name in [_name(answer, cell)]}
    if not matrices:
        return []
    return [("accuracy_matrices", "Mean accuracy on each task (columns) after each task (rows), in %", draw(matrices))]


def _name(answer: Answer, cell: Cell) -> str:
    x_name = x_field(answer.study)
    return f"{label(cell, answer.study)}, {x_name} {cell.x}" if x_name else label(cell, answer.study)


def shape(answer: Answer, cell: Cell) -> Matrix:
    """Row i has the mean over the seeds of the accuracy on tasks 1 to i; empty where the curves are not known."""
    columns: list[Matrix] = []  # per task, per seed: its accuracy from that task on
    while runs := answer.curves_of(cell, f"accuracy_task_{len(columns) + 1}"):
        columns.append(runs)
    return [[fmean(run[i - j] for run in columns[j]) for j in range(i + 1)] for i in range(len(columns))]


def draw(matrices: dict[str, Matrix]) -> Figure:
    columns = min(COLUMNS, len(matrices))
    rows = -(-len(matrices) // columns)
    side = 1.0 + 0.38 * max(map(len, matrices.values()))
    figure = Figure(figsize=(side * columns + 1, side * rows + 0.3), layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False)
    for axes, (name, matrix) in zip(grid.flat, matrices.items()):
        image = draw_matrix(axes, matrix)
        axes.set_title(name, fontsize=8)
    for axes in list(grid.flat)[len(matrices) :]:
        axes.axis("off")
    figure.colorbar(image, ax=grid, shrink=0.7)
    return figure
