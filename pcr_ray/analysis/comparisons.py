"""Paired comparisons: all methods see the same stream for the same seed, so differences are taken seed by seed."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd

from pcr_ray.analysis import tables
from pcr_ray.analysis.render import Grid
from pcr_ray.analysis.results import Answer, Cell, label
from pcr_ray.analysis.stats import Estimate, estimate
from pcr_ray.study.cells import ANY, Panel, x_field

TOO_FEW = 3  # seeds below which no comparison claims anything


@dataclass(frozen=True)
class Comparison:
    """A series against the one that all are compared with, at one x: the leader there, or the report's baseline."""

    panel: Panel
    x: Any
    reference: str
    other: str
    difference: Estimate  # reference minus other, over the seeds that both have; n = 0: none
    p_t: float | None = None
    p_wilcoxon: float | None = None
    p_holm: float | None = None  # of the t-test, corrected over the panel

    @property
    def separated(self) -> bool:
        """Whether the paired 95 % interval leaves no doubt about the sign."""
        found = self.difference
        return found.n >= TOO_FEW and found.ci is not None and abs(found.mean) > found.ci


def compare(answer: Answer) -> list[Comparison]:
    return [one for panel, cells in tables.panels(answer) for one in _panel(answer, panel, cells)]


def columns(answer: Answer, cells: list[Cell]) -> dict[Any, dict[str, Cell]]:
    """x -> series -> cell; series that ignore x are in every column."""
    found: dict[Any, dict[str, Cell]] = {x: {} for x in tables.columns(answer, cells)}
    for cell in cells:
        for x in found if cell.x == ANY and ANY not in found else [cell.x]:
            found[x][label(cell, answer.study)] = cell
    return found


def leader(answer: Answer, column: Mapping[str, Cell]) -> str:
    """The series with the best mean."""
    best = min if tables.metric_of(answer).lower_is_better else max
    return best(column, key=lambda name: column[name].estimate.mean)


def _panel(answer: Answer, panel: Panel, cells: list[Cell]) -> list[Comparison]:
    baseline = answer.study.spec.report.baseline
    found: list[Comparison] = []
    for x, column in columns(answer, cells).items():
        names = {str(cell.series): name for name, cell in reversed(column.items())}
        reference = names.get(baseline) if baseline else leader(answer, column) if column else None
        if reference is None:
            continue
        for name, cell in column.items():
            if name != reference:
                found.append(Comparison(panel, x, reference, name, *paired(column[reference], cell)))
    corrected = holm([c.p_t for c in found])
    return [replace(c, p_holm=p) for c, p in zip(found, corrected)]


def paired(a: Cell, b: Cell) -> tuple[Estimate, float | None, float | None]:
    """Estimate of a - b and the p values of the paired t-test and of Wilcoxon's signed-rank test."""
    from scipy import stats

    differences = [a.values[seed] - b.values[seed] for seed in a.values if seed in b.values]
    if len(differences) < 2:
        return (estimate(differences) if differences else Estimate(float("nan"), None, 0)), None, None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of equal values and of small samples: the p values say it
        p_t = float(stats.ttest_1samp(differences, 0.0).pvalue)
        p_wilcoxon = wilcoxon(differences)
    return estimate(differences), (p_t if p_t == p_t else 1.0), p_wilcoxon


def wilcoxon(differences: Sequence[float]) -> float:
    """The p value of the signed-rank test: exact where scipy's is, also with ties, zeros left out."""
    import numpy as np
    from scipy import stats

    moved = np.array([d for d in differences if d])
    ranks = stats.rankdata(abs(moved))
    n = len(moved)
    if n == 0:
        return 1.0
    if len(differences) > 13 or len(set(ranks)) == n:
        return float(stats.wilcoxon(differences if len(differences) > 13 else moved).pvalue)
    # scipy goes through the signs one by one here, over 100 times as slowly: 40 s for the paper's first table.
    signs = np.arange(2**n)[:, None] >> np.arange(n) & 1  # (2^n, n)
    sums, observed = signs @ ranks, ranks[moved > 0].sum()
    return float(min(1.0, 2 * min((sums <= observed).mean(), (sums >= observed).mean())))


def holm(values: Sequence[float | None]) -> list[float | None]:
    """Holm's step-down correction of the p values that are known."""
    order = sorted((p, i) for i, p in enumerate(values) if p is not None)
    corrected: list[float | None] = [None] * len(values)
    highest = 0.0
    for rank, (p, i) in enumerate(order):
        highest = max(highest, min(1.0, p * (len(order) - rank)))
        corrected[i] = highest
    return corrected


def frame(answer: Answer, comparisons: Sequence[Comparison]) -> pd.DataFrame:
    """comparisons.csv: one row per comparison."""
    rows = []
    for c in comparisons:
        d = c.difference
        row = {"metric": answer.metric, **dict(c.panel), x_field(answer.study) or "x": c.x}
        row |= {"reference": c.reference, "other": c.other}
        row |= {"n": d.n, "difference": d.mean, "ci": d.ci, "p_t": c.p_t, "p_wilcoxon": c.p_wilcoxon}
        rows.append(row | {"p_holm": c.p_holm, "separated": c.separated})
    numbers = ["n", "difference", "ci", "p_t", "p_wilcoxon", "p_holm", "separated"]
    return pd.DataFrame(rows) if rows else pd.DataFrame(columns=["metric", "reference", "other", *numbers])


def grid(answer: Answer, comparisons: Sequence[Comparison]) -> Grid:
    """As a table of the report, one panel's comparisons."""
    x_name = x_field(answer.study) or ""
    header = [x_name or "comparison", "difference", "n", "p (t)", "p (Wilcoxon)", "p (Holm)"]
    rows = []
    for c in comparisons:
        place = f"{c.x}: " if x_name else ""
        difference = f"{c.difference.mean:+.1f}" + ("" if c.difference.ci is None else f" ± {c.difference.ci:.1f}")
        numbers = [_p(p) for p in (c.p_t, c.p_wilcoxon, c.p_holm)]
        name = f"{place}{c.reference} vs {c.other}"
        rows.append([name, difference if c.difference.n else "-", str(c.difference.n), *numbers])
    bold = frozenset((i, 1) for i, c in enumerate(comparisons) if c.separated)
    return Grid(header, rows, bold)


def _p(value: float | None) -> str:
    return "-" if value is None else "< 0.001" if value < 0.001 else f"{value:.3f}"
