"""New and old knowledge side by side: accuracy on the newest task and on older ones, after each task."""

from __future__ import annotations

from matplotlib.figure import Figure

from pcr_ray.analysis.results import Answer, Cell, Panel
from pcr_ray.analysis.views import stages

SIDES = {"new knowledge": "new_accuracy", "old knowledge": "old_accuracy"}


def pictures(answer: Answer, panel: Panel, cells: list[Cell]) -> list[tuple[str, str, Figure]]:
    """One figure per x."""
    found = []
    by_side = {side: stages.shape(answer, cells, metric) for side, metric in SIDES.items()}
    for number, place in enumerate(by_side["new knowledge"], start=1):
        data = {side: shapes.get(place, {}) for side, shapes in by_side.items()}
        # Old knowledge begins with the second task, so both sides do.
        data["new knowledge"] = {k: [run[1:] for run in runs] for k, runs in data["new knowledge"].items()}
        if not any(run for runs in data["old knowledge"].values() for run in runs):
            continue
        title = " ".join(["New and old knowledge", place]).strip()
        figure = stages.draw(data, answer.names, ylabel="accuracy in %", title=title, first_task=2)
        suffix = f"_{number}" if len(by_side["new knowledge"]) > 1 else ""
        found.append((f"knowledge_balance{suffix}", f"{title}, after each task from the second", figure))
    return found
