"""The median, for lists of a dozen numbers between two forwards."""

from __future__ import annotations

from collections.abc import Iterable


def median(values: Iterable[float]) -> float:
    """The middle value, or the mean of the two middle ones; of one or more.

    As `statistics.median`, compiled: that one takes most of its time for what it is not asked here.
    """
    ordered = sorted(values)
    half = len(ordered) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2
