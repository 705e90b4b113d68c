"""The figures of a report, one file per kind.

A view has `pictures(answer, panel, cells)`: the figures that it makes of one panel of an answer, each with the stem of
its file's name and a caption; none where there is nothing to show. Shaping the data and drawing are separate functions.
"""

from __future__ import annotations

from collections.abc import Callable

from matplotlib.figure import Figure

from pcr_ray.analysis.results import Answer, Cell, Panel
from pcr_ray.analysis.views import balance, heat_map, lines, proxies, stages

View = Callable[[Answer, Panel, list[Cell]], list[tuple[str, str, Figure]]]

VIEWS: dict[str, View] = {
    "lines": lines.pictures,
    "stages": stages.pictures,
    "balance": balance.pictures,
    "proxies": proxies.pictures,
    "heat_map": heat_map.pictures,
}
