"""What a view gives: a figure that can be drawn for a page and for a phone."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import NamedTuple

from matplotlib import rc_context
from matplotlib.figure import Figure

from pcr_ray.analysis.style import NARROW, WIDE


class Plot(NamedTuple):
    """`stem` of its file's name, and how to draw it at a width in inches."""

    stem: str
    caption: str
    draw: Callable[[float], Figure]

    def png(self) -> bytes:
        out = io.BytesIO()
        self.draw(WIDE).savefig(out, format="png", dpi=130)
        return out.getvalue()

    def svg(self, *, narrow: bool = False) -> bytes:
        out = io.BytesIO()
        with rc_context({"svg.hashsalt": "pcr_ray"}):  # the same figure is the same file
            self.draw(NARROW if narrow else WIDE).savefig(out, format="svg", metadata={"Date": None})
        return out.getvalue()
