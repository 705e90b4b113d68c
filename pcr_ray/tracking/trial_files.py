"""What a trial leaves in MLflow beside its numbers: accuracy matrix as CSV and picture, the resolved config."""

from __future__ import annotations

import csv
import io
import json
import tempfile
from pathlib import Path
from typing import Any

from pcr_ray.metrics import CLASSIFIERS, Matrix

READABLE = 12  # tasks: numbers of more would overlap


def log(client: Any, run: str, results: dict[str, Any]) -> None:
    """All files of a trial in one call."""
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder), results)
        client.log_artifacts(run, folder)


def write(folder: Path, results: dict[str, Any]) -> None:
    (folder / "config.json").write_text(json.dumps(results["config"], indent=1) + "\n")
    (folder / "results.json").write_text(json.dumps(results, indent=1) + "\n")
    for classifier in CLASSIFIERS.values():
        name = classifier.metric("accuracy_matrix")
        if matrix := results[name]:
            (folder / f"{name}.csv").write_text(matrix_csv(matrix))
            heat_map(matrix, classifier.title).savefig(folder / f"{name}.png", dpi=100)


def matrix_csv(matrix: Matrix) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["after_task", *(f"task_{j + 1}" for j in range(len(matrix)))])
    for i, row in enumerate(matrix):
        writer.writerow([i + 1, *row, *[""] * (len(matrix) - len(row))])
    return text.getvalue()


def heat_map(matrix: Matrix, title: str) -> Any:
    from matplotlib.figure import Figure  # not pyplot: this runs in a thread

    # Places by hand, in inches: a layout engine would take most of the time, twice per trial.
    side = max(1.5, 0.5 * len(matrix))
    width, height = side + 1.5, side + 0.9
    figure = Figure(figsize=(width, height))
    axes = figure.add_axes((0.6 / width, 0.5 / height, side / width, side / height))
    image = draw_matrix(axes, matrix)
    axes.set(xlabel="test task", ylabel="after task")
    figure.text(0.1 / width, 1 - 0.1 / height, f"Accuracy in %, {title}", fontsize=9, va="top")
    scale = figure.add_axes((1 - 0.75 / width, 0.5 / height, 0.15 / width, side / height))
    figure.colorbar(image, cax=scale)
    return figure


def draw_matrix(axes: Any, matrix: Matrix) -> Any:
    """Accuracies as colours and numbers, one row per task learned."""
    import numpy as np

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
