"""The figures of a report, one file per kind.

A view has `pictures(answer, panel, cells)`: the figures that it makes of one panel of an answer; none where there is
nothing to show. Shaping the data and drawing them are separate functions.
"""

from __future__ import annotations

from collections.abc import Callable

from pcr_ray.analysis.results import Answer, Cell
from pcr_ray.analysis.views import balance, heat_map, lines, proxies, stages
from pcr_ray.analysis.views._plot import Plot
from pcr_ray.study.cells import Panel

View = Callable[[Answer, Panel, list[Cell]], list[Plot]]

VIEWS: dict[str, View] = {
    "lines": lines.pictures,
    "stages": stages.pictures,
    "balance": balance.pictures,
    "proxies": proxies.pictures,
    "heat_map": heat_map.pictures,
}
OF_A_METRIC = ("lines",)  # show the report's metric; the others always show the same
