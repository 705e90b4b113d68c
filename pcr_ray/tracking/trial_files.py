"""What a trial leaves in MLflow beside its numbers: accuracy matrix as CSV and picture, the resolved config."""

from __future__ import annotations

import csv
import html
import io
import json
import math
import tempfile
from pathlib import Path
from typing import Any

from pcr_ray.metrics import CLASSIFIERS, Matrix

READABLE = 12  # tasks: numbers of more would overlap
# Matplotlib's viridis at 0, 1/16, … 1. Straight lines between them are off by 5 of 255 at most.
VIRIDIS = [
    "440154", "48186a", "472d7b", "424086", "3b528b", "33638d", "2c728e", "26828e", "21918c",
    "1fa088", "28ae80", "3fbc73", "5ec962", "84d44b", "addc30", "d8e219", "fde725",
]  # fmt: skip
LEFT, TOP, RIGHT, BELOW = 52, 40, 72, 52  # pixels around a matrix, for its title, axes and scale
STYLE = (
    "text{font:12px system-ui,sans-serif;text-anchor:middle;dominant-baseline:central;fill:#222}"
    ".title{font-size:14px;text-anchor:start}.y{text-anchor:end}.scale{text-anchor:start}.light{fill:#fff}.dark{fill:#000}"
)


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
            (folder / f"{name}.svg").write_text(matrix_svg(matrix, f"Accuracy in %, {classifier.title}"))


def matrix_csv(matrix: Matrix) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["after_task", *(f"task_{j + 1}" for j in range(len(matrix)))])
    for i, row in enumerate(matrix):
        writer.writerow([i + 1, *row, *[""] * (len(matrix) - len(row))])
    return text.getvalue()


def matrix_svg(matrix: Matrix, title: str) -> str:
    """Accuracies as colours and numbers, one row per task learned. As text: Matplotlib takes 70 ms per picture."""
    tasks = len(matrix)
    cell = max(160 / tasks, 40 if tasks <= READABLE else 18)
    side = round(cell * tasks)
    right, bottom = LEFT + side, TOP + side
    parts = [_text(8, 18, title, "title")]
    parts += [
        _cell(LEFT + cell * j, TOP + cell * i, cell, a, tasks) for i, r in enumerate(matrix) for j, a in enumerate(r)
    ]
    for i in range(0, tasks, -(-tasks // READABLE)):
        middle = cell * (i + 0.5)
        parts += [_text(LEFT + middle, bottom + 14, f"{i + 1}"), _text(LEFT - 8, TOP + middle, f"{i + 1}", "y")]
    turned = f"translate(16 {TOP + side / 2:g}) rotate(-90)"
    parts += [
        _text(LEFT + side / 2, bottom + 36, "test task"),
        f'<g transform="{turned}">{_text(0, 0, "after task")}</g>',
    ]
    stops = "".join(f'<stop offset="{i / 16}" stop-color="#{c}"/>' for i, c in enumerate(VIRIDIS))
    parts += [
        f'<defs><linearGradient id="scale" x1="0" y1="1" x2="0" y2="0">{stops}</linearGradient></defs>',
        f'<rect x="{right + 20}" y="{TOP}" width="14" height="{side}" fill="url(#scale)"/>',
        *(_text(right + 40, bottom - side * a / 100, f"{a}", "scale") for a in range(0, 101, 20)),
        f'<rect x="{LEFT}" y="{TOP}" width="{side}" height="{side}" fill="none" stroke="#999"/>',
    ]
    size = f'width="{right + RIGHT}" height="{bottom + BELOW}"'
    body = "\n".join(['<rect width="100%" height="100%" fill="#fff"/>', *parts])
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size}><style>{STYLE}</style>\n{body}\n</svg>\n'


def _cell(x: float, y: float, size: float, accuracy: float, tasks: int) -> str:
    # Half a pixel more: browsers show the ground between boxes that only touch.
    box = (
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{size + 0.5:.1f}" height="{size + 0.5:.1f}" fill="{colour(accuracy)}"/>'
    )
    ink = "light" if accuracy < 60 else "dark"
    return box + (_text(x + size / 2, y + size / 2, f"{accuracy:.0f}", ink) if tasks <= READABLE else "")


def _text(x: float, y: float, text: str, kind: str = "") -> str:
    mark = f' class="{kind}"' if kind else ""
    return f'<text x="{x:.1f}" y="{y:.1f}"{mark}>{html.escape(text)}</text>'


def colour(accuracy: float) -> str:
    """Of 0 to 100, in CSS; grey for what is no number."""
    if math.isnan(accuracy):
        return "#ddd"
    place = min(max(accuracy / 100, 0.0), 1.0) * (len(VIRIDIS) - 1)
    below = min(int(place), len(VIRIDIS) - 2)
    ends = zip(bytes.fromhex(VIRIDIS[below]), bytes.fromhex(VIRIDIS[below + 1]))
    return "#" + bytes(round(a + (b - a) * (place - below)) for a, b in ends).hex()
