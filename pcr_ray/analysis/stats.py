"""Means with 95 % confidence intervals."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from statistics import fmean, stdev
from typing import NamedTuple


class Estimate(NamedTuple):
    """A mean over n values; `ci` is the half width of its 95 % interval, None where n < 2."""

    mean: float
    ci: float | None
    n: int

    def __str__(self) -> str:
        if self.ci is None:
            return f"{self.mean:.1f} (n=1, no CI)"
        return f"{self.mean:.1f} ± {self.ci:.1f}"


def estimate(values: Sequence[float]) -> Estimate:
    """t(0.975, n - 1) times the standard error of the mean."""
    n = len(values)
    if n < 2:
        return Estimate(fmean(values), None, n)
    return Estimate(fmean(values), _quantile(n - 1) * stdev(values) / math.sqrt(n), n)


@lru_cache(maxsize=1024)
def _quantile(freedom: int) -> float:
    from scipy.special import stdtrit  # scipy.stats takes 0.6 s longer to import

    return float(stdtrit(freedom, 0.975))
