"""How series look: the same in all figures of a report."""

from __future__ import annotations

from typing import Any

from matplotlib.figure import Figure

# Okabe and Ito's palette, readable with colour-blindness, with markers as a second cue.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#999999")
MARKERS = "osD^vPX*"


def style(index: int) -> dict[str, Any]:
    return {
        "color": COLOURS[index % len(COLOURS)],
        "marker": MARKERS[(index + index // len(COLOURS)) % len(MARKERS)],
        "linestyle": ("-", "--", "-.", ":")[index // len(COLOURS) % 4],
    }


def legend(figure: Figure, *plots: Any) -> None:
    """In the first plot, or below them all in a strip of its own where there are many series."""
    found = [plot.get_legend_handles_labels() for plot in plots]
    series = {label: handle for handles, labels in found for handle, label in zip(handles, labels)}
    if len(series) <= len(COLOURS):
        plots[0].legend(series.values(), series.keys(), fontsize=8)
        return
    columns = max(3, int(figure.get_figwidth() / 1.3))
    figure.set_figheight(figure.get_figheight() + 0.3 + 0.2 * -(-len(series) // columns))
    figure.legend(series.values(), series.keys(), loc="outside lower center", ncols=columns, fontsize=8)


def within_percent(axes: Any, ylabel: str) -> None:
    """Intervals of few seeds reach beyond what a percentage can be."""
    if "%" in ylabel:
        low, high = axes.get_ylim()
        axes.set_ylim(max(0, low), min(100, high))


def sort_key(value: Any) -> tuple[int, Any]:
    return (0, value) if isinstance(value, int | float) else (1, str(value))
