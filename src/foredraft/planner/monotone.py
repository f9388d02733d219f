"""A curve that hardly falls, from measurements that do.

More rows can take less time, within limits: kernels that compute four rows at once need a slower path for
the rest, and 8 rows take four fifths of 7 (measured, Q4_0 on a CPU). More than that is a clock's error.
"""

from __future__ import annotations

from collections.abc import Sequence

TOLERANCE = 1.4
"""How much dearer than a larger batch a smaller one may be, where that was seen often."""

SURE = 5
"""Measurements from which it was. A size that was measured in a busy moment, and looks too dear to be used
because of that, would never be measured again: so few are not believed against a larger batch's.
"""

Point = tuple[int, float, int]
"""Rows, measured value, and how many measurements stand behind it."""


def monotone(points: Sequence[Point]) -> list[tuple[int, float]]:
    """The values of `points` (sorted by rows), none more than `TOLERANCE` times a later one, nor above it at
    all with fewer than `SURE` measurements.

    Neighbours that fall by more are pooled, and a pool has the weighted lower median of its members (Barlow
    et al. 1972, pool adjacent violators for absolute errors). So one bad measurement, of a size that was
    seen during a stall only, gives way to its neighbours in whichever direction it is wrong.
    """
    pools: list[tuple[float, list[Point], float]] = []  # the third: the least that a later value may be
    for point in points:
        value, members = point[1], [point]
        while pools and pools[-1][2] > value:
            members = pools.pop()[1] + members
            value = _median(members)
        seen = sum(weight for _, _, weight in members)
        least = value / TOLERANCE if seen >= SURE else value
        pools.append((value, members, max(least, pools[-1][2]) if pools else least))
    return [(rows, value) for value, members, _ in pools for rows, _, _ in members]


def _median(points: Sequence[Point]) -> float:
    half = sum(weight for _, _, weight in points) / 2
    for _, value, weight in sorted(points, key=lambda point: point[1]):
        half -= weight
        if half <= 0:
            return value
    raise ValueError("no points")
