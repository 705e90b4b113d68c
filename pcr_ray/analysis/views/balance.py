"""New and old knowledge side by side: accuracy on the newest task and on older ones, after each task."""

from __future__ import annotations

from matplotlib.figure import Figure

from pcr_ray.analysis.results import Answer, Cell, scale
from pcr_ray.analysis.style import looks
from pcr_ray.analysis.views import stages
from pcr_ray.analysis.views._plot import Plot
from pcr_ray.study.cells import Panel

SIDES = {"new knowledge": "new_accuracy", "old knowledge": "old_accuracy"}


def pictures(answer: Answer, panel: Panel, cells: list[Cell]) -> list[Plot]:
    """One figure per x."""
    found = []
    by_side = {side: stages.shape(answer, cells, metric) for side, metric in SIDES.items()}
    for number, place in enumerate(by_side["new knowledge"], start=1):
        data = {side: shapes.get(place, {}) for side, shapes in by_side.items()}
        # Old knowledge begins with the second task, so both sides do.
        data["new knowledge"] = {k: [run[1:] for run in runs] for k, runs in data["new knowledge"].items()}
        if not any(run for runs in data["old knowledge"].values() for run in runs):
            continue
        what = " ".join(["New and old knowledge", place]).strip()
        title = ", ".join(part for part in (what, scale(answer.study)) if part)

        def at(width: float, data: stages.Stages = data, title: str = title) -> Figure:
            return stages.draw(
                data, looks(answer), ylabel="accuracy in %", title=title, first_task=2, width=width
            )  # fmt: skip

        suffix = f"_{number}" if len(by_side["new knowledge"]) > 1 else ""
        found.append(Plot(f"knowledge_balance{suffix}", f"{what}, after each task from the second", at))
    return found
