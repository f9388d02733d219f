"""How sure a speedup is that was measured on some prompts."""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, log, sqrt
from statistics import NormalDist, fmean, stdev

FEWEST = 4
"""Prompts from which there is an interval."""


def confidence(speedups: Sequence[float], level: float = 0.95) -> tuple[float, float] | None:
    """Bounds of the geometric mean of positive speedups, by Student's t of their logarithms; None of fewer
    than `FEWEST`.
    """
    count = len(speedups)
    if count < FEWEST:
        return None
    logs = [log(speedup) for speedup in speedups]
    middle, around = fmean(logs), student(level, count - 1) * stdev(logs) / sqrt(count)
    return exp(middle - around), exp(middle + around)


def student(level: float, freedom: int) -> float:
    """The t that is exceeded on either side with probability 1 - `level`, within 1 % for 3 degrees of freedom
    or more: the expansion around the normal distribution (Abramowitz and Stegun, 26.7.5).
    """
    z = NormalDist().inv_cdf((1 + level) / 2)
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
    )
    more: float = sum(term / freedom**power for power, term in enumerate(terms, 1))
    return z + more
