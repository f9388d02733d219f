"""A curve that never falls, from measurements that do: more rows never take less time, but clocks say so."""

from __future__ import annotations

from collections.abc import Sequence

Point = tuple[int, float, int]
"""Rows, measured value, and how many measurements stand behind it."""


def monotone(points: Sequence[Point]) -> list[tuple[int, float]]:
    """The values of `points` (sorted by rows), made non-decreasing.

    Neighbours that fall are pooled, and a pool has the weighted lower median of its members (Barlow et al.
    1972, pool adjacent violators for absolute errors). So one bad measurement, of a size that was seen
    during a stall only, gives way to its neighbours in whichever direction it is wrong.
    """
    pools: list[tuple[float, list[Point]]] = []
    for point in points:
        value, members = point[1], [point]
        while pools and pools[-1][0] > value:
            members = pools.pop()[1] + members
            value = _median(members)
        pools.append((value, members))
    return [(rows, value) for value, members in pools for rows, _, _ in members]


def _median(points: Sequence[Point]) -> float:
    half = sum(weight for _, _, weight in points) / 2
    for _, value, weight in sorted(points, key=lambda point: point[1]):
        half -= weight
        if half <= 0:
            return value
    raise ValueError("no points")
