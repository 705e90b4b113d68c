"""What a trial leaves in MLflow beside its numbers: accuracy matrix as CSV and picture, the resolved config."""

from __future__ import annotations

import csv
import io
import json
import tempfile
from pathlib import Path
from typing import Any

from pcr_ray.metrics import CLASSIFIERS, Matrix


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
    import numpy as np
    from matplotlib.figure import Figure  # not pyplot: this runs in a thread

    size = len(matrix)
    values = np.full((size, size), np.nan)
    for i, row in enumerate(matrix):
        values[i, : len(row)] = row
    figure = Figure(figsize=(1.8 + 0.55 * size, 1.4 + 0.5 * size), layout="constrained")
    axes = figure.subplots()
    image = axes.imshow(values, vmin=0, vmax=100, cmap="viridis")
    for i, row in enumerate(matrix):
        for j, a in enumerate(row):
            axes.text(j, i, f"{a:.0f}", ha="center", va="center", color="white" if a < 60 else "black", fontsize=8)
    axes.set(xlabel="test task", ylabel="after task", title=f"Accuracy in %, {title}")
    axes.title.set_fontsize(9)
    numbers = [str(i + 1) for i in range(size)]
    axes.set_xticks(range(size), numbers)
    axes.set_yticks(range(size), numbers)
    figure.colorbar(image, shrink=0.8)
    return figure
