"""How figures look. A method has the same colour in every figure of every report."""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean, pstdev
from typing import Any

from matplotlib.colors import to_rgba
from matplotlib.figure import Figure
from matplotlib.transforms import ScaledTranslation

from pcr_ray.analysis.results import Answer, label
from pcr_ray.metrics import SOFTMAX

WIDE, NARROW = 8.0, 3.9  # inches: a page, and a phone at the size of its own text
# Okabe and Ito's palette and Tol's "muted" one, readable with colour-blindness; markers are a second cue.
COLOURS = (
    "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#999999", "#332288", "#882255",
    "#44AA99", "#999933", "#AA4499", "#117733", "#DDCC77", "#CC6677", "#661100", "#6699CC", "#88CCEE",
)  # fmt: skip
MARKERS = "osD^vPX*"
# By colour: those that are most often compared have the most different ones. Others take what their name gives.
METHODS = (
    "pcr", "er", "er_ace", "scr", "ocm", "mir", "derpp", "ss_il", "er_dvc", "aser",
    "gss", "gmed", "agem", "er_wa", "iid", "finetune", "hpcr", "er_a", "pcr_c",
)  # fmt: skip
FEW, MANY = 6, 12  # series: with more than a few, bands would bury the lines, with more than many, any intervals
LINE = 11.0  # points that a label takes
# From a line's end to its label. No patchA: to cut the line at the text's box took a fifth of a report's time.
LEADER = {"arrowstyle": "-", "linewidth": 0.5, "patchA": None, "relpos": (0, 0.5), "shrinkA": 0, "shrinkB": 4}


@dataclass(frozen=True)
class Look:
    """Of one series."""

    colour: str
    marker: str = "o"
    linestyle: str = "-"
    filled: bool = True

    @property
    def line(self) -> dict[str, Any]:
        """As arguments of matplotlib's plots."""
        inside = self.colour if self.filled else "white"
        return {"color": self.colour, "marker": self.marker, "linestyle": self.linestyle, "markerfacecolor": inside}

    @property
    def faint(self) -> Any:
        return to_rgba(self.colour, 0.45)


Looks = Mapping[str, Look]


def looks(answer: Answer) -> dict[str, Look]:
    """By series, in the order of the report. Class means of a method have its colour, dashed and hollow."""
    values = list(dict.fromkeys(cell.series for cell in answer.cells))
    by_method = answer.study.spec.report.series == "method"
    found = {}
    for cell in answer.cells:
        number = _number(str(cell.series)) if by_method else values.index(cell.series)
        found[label(cell, answer.study)] = look(number, own=cell.classifier == SOFTMAX.name)
    return found


def look(number: int, *, own: bool = True) -> Look:
    around = number // len(COLOURS)
    marker = MARKERS[(number + around) % len(MARKERS)]
    return Look(COLOURS[number % len(COLOURS)], marker, ("-", "-.", ":")[around % 3] if own else "--", own)


def _number(method: str) -> int:
    if method in METHODS:
        return METHODS.index(method)
    return len(METHODS) + zlib.crc32(method.encode()) % (2 * len(COLOURS))


def scale_of(xs: Sequence[Any]) -> str:
    """`log` where numbers grow by factors rather than by steps, `linear` for other numbers, else `names`."""
    if len(xs) < 2 or not all(isinstance(x, int | float) and not isinstance(x, bool) for x in xs):
        return "names"
    steps = [b - a for a, b in pairwise(xs)]
    if min(xs) <= 0 or len(xs) == 2:
        return "linear"
    factors = [math.log(b / a) for a, b in pairwise(xs)]
    return "log" if pstdev(factors) / fmean(factors) < pstdev(steps) / fmean(steps) else "linear"


def set_x(axes: Any, xs: Sequence[Any]) -> dict[Any, float]:
    """Make the axis fit for these sorted values; returns where each is on it."""
    scale = scale_of(xs)
    place = {x: float(i) for i, x in enumerate(xs)} if scale == "names" else {x: float(x) for x in xs}
    if scale == "log":
        axes.set_xscale("log")
    kept = list(xs) if scale == "names" else _apart(xs, math.log if scale == "log" else float)
    axes.set_xticks([place[x] for x in kept], [f"{x:g}" if isinstance(x, float) else str(x) for x in kept])
    axes.minorticks_off()
    low, high = min(place.values(), default=0.0), max(place.values(), default=1.0)
    if scale == "log":
        axes.set_xlim(low / (high / low) ** 0.06, high * (high / low) ** 0.06)
    else:
        axes.set_xlim(low - 0.06 * (high - low or 1), high + 0.06 * (high - low or 1))
    if scale == "names" and sum(len(str(x)) + 3 for x in kept) > 9 * axes.figure.get_figwidth():
        axes.tick_params(axis="x", labelrotation=35)
    return place


def _apart(xs: Sequence[float], scaled: Any, share: float = 0.09) -> list[float]:
    """Values that leave room for each other's names; the largest is one of them."""
    whole = scaled(xs[-1]) - scaled(xs[0])
    kept = [xs[-1]]
    for x in reversed(xs[:-1]):
        if scaled(kept[-1]) - scaled(x) >= share * whole:
            kept.append(x)
    return kept[::-1]


def beside(axes: Any, index: int, total: int) -> Any:
    """Data coordinates, moved by a few points: intervals of series side by side, not on top of each other."""
    step = min(4.0, 24.0 / total)
    points = step * (index - (total - 1) / 2)
    return axes.transData + ScaledTranslation(points / 72, 0, axes.figure.dpi_scale_trans)


def name_series(figure: Figure, ends: Mapping[str, tuple[float, float]], styles: Looks, *plots: Any) -> None:
    """At the ends of their lines where there is one plot with room for it, else in a legend below."""
    height = 0.75 * 72 * figure.get_figheight()
    if len(plots) == 1 and figure.get_figwidth() >= WIDE and ends and LINE * len(ends) <= height:
        _label_ends(plots[0], ends, styles, LINE / height)
    else:
        legend(figure, *plots)


def _label_ends(axes: Any, ends: Mapping[str, tuple[float, float]], styles: Looks, gap: float) -> None:
    low, high = axes.get_ylim()
    names = sorted(ends, key=lambda name: ends[name][1])
    wanted = [(ends[name][1] - low) / (high - low) for name in names]
    for name, y in zip(names, spread(wanted, gap)):
        axes.annotate(
            name, ends[name], (1.02, y), textcoords="axes fraction", color=styles[name].colour, va="center",
            fontsize=9, annotation_clip=False,
            arrowprops=LEADER | {"color": styles[name].faint},
        )  # fmt: skip
    others = {name: handle for handle, name in zip(*axes.get_legend_handles_labels()) if name not in ends}
    if others:  # the paper's crosses
        axes.legend(others.values(), others.keys(), fontsize=8)


def spread(wanted: Sequence[float], gap: float) -> list[float]:
    """The nearest places (least squares) of labels in [0, 1] that are at least `gap` apart; `wanted` is sorted."""
    from scipy.optimize import isotonic_regression

    fitted = isotonic_regression([y - i * gap for i, y in enumerate(wanted)]).x
    room = max(0.0, 1 - (len(wanted) - 1) * gap)
    return [float(min(max(y, 0.0), room)) + i * gap for i, y in enumerate(fitted)]


def legend(figure: Figure, *plots: Any) -> None:
    """Below all plots, in a strip of its own."""
    found = [plot.get_legend_handles_labels() for plot in plots]
    series = {label: handle for handles, labels in found for handle, label in zip(handles, labels)}
    if not series:
        return
    columns = max(2, min(len(series), int(figure.get_figwidth() / 1.5)))
    figure.set_figheight(figure.get_figheight() + 0.2 + 0.2 * -(-len(series) // columns))
    figure.legend(series.values(), series.keys(), loc="outside lower center", ncols=columns, fontsize=8)


def within_percent(axes: Any, ylabel: str) -> None:
    """Intervals of few seeds reach beyond what a percentage can be. Markers at 0 and 100 are not cut in half."""
    if "%" in ylabel:
        low, high = max(0, axes.get_ylim()[0]), min(100, axes.get_ylim()[1])
        room = 0.02 * (high - low)
        axes.set_ylim(low - room * (low == 0), high + room * (high == 100))


def set_y(axes: Any, values: Sequence[float], ylabel: str) -> None:
    """Room for all of these: matplotlib does not look at what is drawn `beside` its place."""
    low, high = min(values), max(values)
    margin = 0.06 * (high - low) or 1.0
    axes.set_ylim(low - margin, high + margin)
    within_percent(axes, ylabel)


def grid_of(count: int, width: float, most: int, height: float) -> tuple[Figure, Any]:
    """A figure with `count` plots in as many columns as its width allows, those left over switched off."""
    columns = min(count, (2 if count == 4 else most) if width >= WIDE else 1)
    rows = -(-count // columns)
    figure = Figure(figsize=(width, 0.5 + height * rows), layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False, sharey=False)
    for axes in list(grid.flat)[count:]:
        axes.axis("off")
    return figure, grid
