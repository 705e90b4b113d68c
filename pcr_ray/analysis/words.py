"""The answer in words, computed from the numbers: who leads where, by how much, and what cannot be told apart.

Claims are facts about pairs of cells; `sentences` only puts them into English. No claim goes beyond the paired 95 %
interval of the seeds that both have.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from pcr_ray.analysis import tables
from pcr_ray.analysis.comparisons import TOO_FEW, columns, paired
from pcr_ray.analysis.results import Answer, label, scale
from pcr_ray.analysis.stats import Estimate, estimate
from pcr_ray.analysis.views import proxies
from pcr_ray.study.cells import Panel, x_field
from pcr_ray.text import count

LEADS, NOT_SEPARATED, TOO_FEW_SEEDS, NONE_SHARED = "leads", "not separated", "too few seeds", "no seed in common"


@dataclass(frozen=True)
class Claim:
    """About the best series at one x and the next best one of another method; a positive `difference` is the lead."""

    panel: Panel
    x: Any
    kind: str
    first: str
    second: str
    difference: Estimate


def claims(answer: Answer) -> list[Claim]:
    """One per panel and x with at least two series."""
    found = []
    sign = -1 if tables.metric_of(answer).lower_is_better else 1
    for panel, cells in tables.panels(answer):
        for x, column in columns(answer, cells).items():
            ranked = sorted(column, key=lambda name: -sign * column[name].estimate.mean)
            if len(ranked) < 2:
                continue
            first = ranked[0]
            # The same training by another classifier is no rival, unless there is no other.
            rivals = [name for name in ranked[1:] if column[name].series != column[first].series]
            second = (rivals or ranked[1:])[0]
            raw = paired(column[first], column[second])[0]
            difference = Estimate(sign * raw.mean, raw.ci, raw.n)
            found.append(Claim(panel, x, _kind(difference), first, second, difference))
    return found


def _kind(ahead: Estimate) -> str:
    if not ahead.n:
        return NONE_SHARED
    if ahead.n < TOO_FEW or ahead.ci is None:
        return TOO_FEW_SEEDS
    return LEADS if ahead.mean > ahead.ci else NOT_SEPARATED


def sentences(answer: Answer, found: Sequence[Claim] | None = None) -> list[str]:
    """The answer, one string per panel, and what is missing."""
    made = list(claims(answer) if found is None else found)
    out = []
    for panel, group in groupby(made, key=lambda c: c.panel):
        small = scale(answer.study)
        place = ", ".join(part for part in (tables.heading(panel), small) if part)
        place = place[:1].upper() + place[1:] if not panel else place
        parts = [_sentence(answer, list(same)) for _, same in groupby(group, key=lambda c: (c.kind, c.first, c.second))]
        out.append((f"{place}: " if place else "") + " ".join(parts))
    total, open_ = len(answer.study.trials), len(answer.missing) + len(answer.failed)
    if open_:
        out.append(f"Missing or failed: {open_} of {count(total, 'trial')}. This is preliminary.")
    return out


def _sentence(answer: Answer, same: list[Claim]) -> str:
    """Of claims of one kind about one pair."""
    first, second, kind = same[0].first, same[0].second, same[0].kind
    x_name, metric = x_field(answer.study), tables.metric_of(answer)
    where = f" at {x_name} {_list(c.x for c in same)}" if x_name else ""
    what = "" if metric.name == "final_accuracy" else f" in {metric.title.lower()}"
    if kind == NONE_SHARED:
        return f"{first} has a better mean than {second}{what}{where}, but they have no seed in common."
    numbers = [_difference(c.difference) for c in same]
    n = _seeds([c.difference.n for c in same])
    points = " points" if metric.unit in ("%", "points") else ""
    if kind == LEADS:
        return f"{first} leads {second}{what}{where} by {_list(numbers)}{points} ({n})."
    if kind == NOT_SEPARATED:
        return f"The seeds do not separate {first} from {second}{what}{where}: {_list(numbers)}{points} ({n})."
    return f"{first} is ahead of {second}{what}{where} by {_list(numbers)}{points}, too few seeds to say more ({n})."


def _difference(found: Estimate) -> str:
    return f"{found.mean:.1f}" + ("" if found.ci is None else f" ± {found.ci:.1f}")


def _seeds(counts: Sequence[int]) -> str:
    low, high = min(counts), max(counts)
    return f"n = {low}" if low == high else f"n = {low} to {high}"


def _list(items: Any) -> str:
    words = [str(item) for item in items]
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def beside_the_paper(answer: Answer) -> str:
    """How many cells agree with the paper's, where both have an interval; empty where none does."""
    judged = agree = alone = 0
    for cell in answer.cells:
        if cell.paper is None:
            continue
        ours = cell.estimate
        if ours.ci is None or "ci" not in cell.paper:
            alone += 1
            continue
        judged += 1
        agree += abs(ours.mean - cell.paper["value"]) <= ours.ci + cell.paper["ci"]
    if not judged + alone:
        return ""
    text = f"{agree} of {count(judged, 'cell')} agree with the paper's: the intervals overlap." if judged else ""
    left = f"Without an interval to judge by: {count(alone, 'cell')}." if alone else ""
    return " ".join(part for part in (text, left) if part)


def of_proxies(answer: Answer) -> list[str]:
    """How much of the gradient the newest classes' proxies received, beside an even share; one string per panel."""
    found = []
    for panel, cells in tables.panels(answer) if "proxies" in answer.study.spec.report.figures else []:
        texts, share = [], 0.0
        for cell in cells:
            newest, shares = proxies.newest_classes(answer, cell), proxies.shares(answer, cell)
            if shares:
                share = 100 * newest / len(proxies.shape(answer, cell))
                texts.append(f"{label(cell, answer.study)} {tables.number(estimate(shares))} %")
        if texts:
            place = f"{tables.heading(panel)}: " if panel else ""
            found.append(
                f"{place}Of the gradient that the proxies of all classes received in the last task, those of the "
                f"newest classes received: {', '.join(texts)}. An even share is {share:.0f} %."
            )
    return found
