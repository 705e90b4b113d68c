"""Comparisons against scipy directly; sentences re-derived from the raw numbers of randomly made results."""

from __future__ import annotations

import random
import re
from statistics import fmean, stdev
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from pcr_ray.analysis import comparisons, words
from pcr_ray.analysis.results import Answer, Cell
from pcr_ray.study import load as study_files

METHODS = {"pcr": "PCR", "er": "ER", "er_ace": "ER-ACE", "scr": "SCR"}


def answer_of(
    values: dict[tuple[str, int], dict[int, float]], *, y: str = "final_accuracy", missing: int = 0, **report: Any
) -> Answer:
    """An answer with these numbers: (method, buffer) -> seed -> number."""
    grid = {"method": sorted({m for m, _ in values}), "buffer": sorted({x for _, x in values}), "seed": [0]}
    content = {
        "name": "made",
        "fixed": {"dataset": "digits"},
        "grid": grid,
        "report": {"x": "buffer", "y": y, **report},
    }
    study = study_files.parse(content, "a file")
    paper = {"value": 50.0, "ci": 1.0} if report.get("paper") else None
    cells = [Cell((), m, "softmax", x, v, paper) for (m, x), v in values.items()]
    return Answer(study, None, cells, runs={}, missing=["?"] * missing, failed={}, metric=y)  # type: ignore[arg-type]


def test_a_comparison_is_that_of_scipy() -> None:
    pcr = {0: 60.1, 1: 58.2, 2: 61.7, 3: 59.9, 4: 60.4}
    er = {0: 55.0, 1: 56.1, 2: 57.7, 3: 55.2, 4: 58.1}
    ace = {0: 59.0, 1: 59.1, 2: 60.7, 3: 58.2, 7: 1.0}
    found = {c.other: c for c in comparisons.compare(answer_of({("pcr", 9): pcr, ("er", 9): er, ("er_ace", 9): ace}))}
    assert all(c.reference == "PCR" for c in found.values())
    expected = stats.ttest_rel(list(pcr.values()), list(er.values()))
    interval = expected.confidence_interval(0.95)
    c = found["ER"]
    assert c.difference.n == 5 and c.p_t == pytest.approx(expected.pvalue)
    assert (c.difference.mean - c.difference.ci, c.difference.mean + c.difference.ci) == pytest.approx(tuple(interval))
    assert c.p_wilcoxon == pytest.approx(stats.wilcoxon(list(pcr.values()), list(er.values())).pvalue)
    assert found["ER-ACE"].difference.n == 4, "only the seeds that both have"
    p = sorted([found["ER"].p_t, found["ER-ACE"].p_t])
    assert sorted([found["ER"].p_holm, found["ER-ACE"].p_holm]) == pytest.approx([2 * p[0], max(2 * p[0], p[1])])


@pytest.mark.filterwarnings("ignore")  # scipy's, of small samples
@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(-4, 6), min_size=2, max_size=15).filter(any))
def test_wilcoxons_test_is_that_of_scipy_also_with_ties_and_zeros(differences: list[int]) -> None:
    assert comparisons.wilcoxon(differences) == pytest.approx(stats.wilcoxon(differences).pvalue)


def test_holm_by_hand() -> None:
    assert comparisons.holm([0.01, None, 0.04, 0.03]) == pytest.approx([0.03, None, 0.06, 0.06])
    assert comparisons.holm([0.6, 0.9]) == [1.0, 1.0]


def test_a_baseline_is_compared_with_instead_of_the_leader() -> None:
    values = {("pcr", 9): {0: 60.0, 1: 61.0}, ("er", 9): {0: 50.0, 1: 52.0}, ("scr", 9): {0: 55.0, 1: 55.0}}
    found = comparisons.compare(answer_of(values, baseline="er"))
    assert {(c.reference, c.other, c.difference.mean) for c in found} == {("ER", "PCR", -9.5), ("ER", "SCR", -4.0)}


def test_the_sentences_of_a_study_read_well() -> None:
    base = {s: 50.0 + s for s in range(5)}
    ahead = {s: v + 3 + 0.1 * s for s, v in base.items()}
    close = {s: v + (1 if s % 2 else -1) for s, v in base.items()}
    values = {
        ("pcr", 10): ahead,
        ("er", 10): base,
        ("pcr", 20): ahead,
        ("er", 20): base,
        ("pcr", 50): close,
        ("er", 50): base,
    }
    text = " ".join(words.sentences(answer_of(values)))
    assert "PCR leads ER at buffer 10 and 20 by 3.2 ± 0.2 and 3.2 ± 0.2 points (n = 5)." in text
    assert "The seeds do not separate ER from PCR at buffer 50: 0.2 ± 1.4 points (n = 5)." in text
    assert "missing" not in text
    few = " ".join(words.sentences(answer_of({("pcr", 1): {0: 60.0}, ("er", 1): {0: 50.0}}, missing=1)))
    assert (
        "too few seeds to say more (n = 1)" in few and "Missing or failed: 1 of 2 trials. This is preliminary." in few
    )


def test_less_forgetting_is_better() -> None:
    values = {("pcr", 1): {s: 5.0 + 0.1 * s for s in range(4)}, ("er", 1): dict.fromkeys(range(4), 20.0)}
    (text,) = words.sentences(answer_of(values, y="forgetting"))
    assert text.startswith("PCR leads ER in forgetting at buffer 1 by 14.8")


def test_cells_beside_the_paper_are_counted_by_their_intervals() -> None:
    values = {("pcr", 1): {0: 50.0, 1: 51.0, 2: 49.0}, ("er", 1): {0: 60.0, 1: 60.5, 2: 60.2}, ("scr", 1): {0: 50.0}}
    text = words.beside_the_paper(answer_of(values, paper=[{"method": "pcr", "value": 50.0, "ci": 1.0}]))
    assert text == ("1 of 2 cells agree with the paper's: the intervals overlap. "
                    "Without an interval to judge by: 1 cell.")  # fmt: skip


CLAIM = re.compile(
    r"(?P<first>[\w+-]+) leads (?P<second>[\w+-]+)(?: in \w+)? at buffer (?P<xs>[\d, and]+) "
    r"by (?P<by>[-\d.±, and]+) points"
    r"|do not separate (?P<a>[\w+-]+) from (?P<b>[\w+-]+)(?: in \w+)? at buffer (?P<ys>[\d, and]+): "
    r"|(?P<c>[\w+-]+) is ahead of (?P<d>[\w+-]+)(?: in \w+)? at buffer (?P<zs>[\d, and]+) by"
)


def numbers(text: str) -> list[str]:
    return re.split(r", | and ", text)


@pytest.mark.parametrize("seed", range(60))
def test_no_sentence_says_more_than_the_raw_numbers(seed: int) -> None:
    rng = random.Random(seed)
    y = rng.choice(["final_accuracy", "forgetting"])
    methods = rng.sample(sorted(METHODS), rng.randint(2, 4))
    raw = {
        (m, x): {
            s: rng.gauss(50 + rng.choice([0, 0, 4]), rng.choice([0.1, 2, 10]))
            for s in range(rng.choice([1, 2, 3, 10])) if rng.random() > 0.1 or s == 0
        }
        for m in methods for x in (100, 200, 500)
    }  # fmt: skip
    sign = -1 if y == "forgetting" else 1
    text = " ".join(words.sentences(answer_of(raw, y=y)))
    spoken: set[str] = set()
    for match in CLAIM.finditer(text):
        first, second = (match["first"] or match["a"] or match["c"], match["second"] or match["b"] or match["d"])
        xs = numbers(match["xs"] or match["ys"] or match["zs"])
        spoken |= set(xs)
        for position, x in enumerate(xs):
            column = {METHODS[m]: raw[m, int(x)] for m in methods}
            ranked = sorted(column, key=lambda name: -sign * fmean(column[name].values()))
            assert [first, second] == ranked[:2], "the best and the second best by their means"
            shared = column[first].keys() & column[second].keys()
            d = [sign * (column[first][s] - column[second][s]) for s in shared]
            if match["c"]:
                assert len(d) < 3
                continue
            half = stats.t.ppf(0.975, len(d) - 1) * stdev(d) / len(d) ** 0.5
            assert (fmean(d) - half > 0) == bool(match["first"]), "a lead is claimed just where the interval excludes 0"
            if match["first"]:
                assert numbers(match["by"])[position] == f"{fmean(d):.1f} ± {half:.1f}"
    assert spoken == {"100", "200", "500"}, text
