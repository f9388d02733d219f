"""The batch cost curve V(n), learnt from rounds as they happen: medians, because machines are noisy.

What is kept is V(n)/V(1), which changes little; V(1) itself is `pace`. A size is not measured any more once
its drafts look too dear, so nothing measured is believed for good: see `_Size`, and `monotone`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from dataclasses import dataclass, field
from statistics import median

import numpy as np

from foretoken.planner.monotone import monotone
from foretoken.planner.pace import WINDOW, Pace

PRIOR_SLOPE = 0.45
"""Cost of one more row relative to V(1), before anything was measured: a CPU's. Pessimistic on purpose."""

OUT_OF_DATE = 1000
"""Rounds after which a measurement is believed only where it is no dearer than the prior."""

ODD = 3.0
"""A forward this many times dearer or cheaper than it should be is noise …"""

REPEATS = 8
"""… unless that happens this many times running."""

_FINE, _COARSE = 64, 16

LONGEST = 63
"""Draft tokens up to which lengths are compared."""


@dataclass(slots=True)
class _Size:
    """What is known of one number of rows."""

    ratios: deque[float]
    at: int
    value: float
    odd: list[float] = field(default_factory=list)


class CostCurve:
    """V(n)/V(1) for the depth at hand."""

    def __init__(self) -> None:
        self._round = 0
        self._pace = Pace()
        self._sizes: dict[int, _Size] = {}
        self._known: list[tuple[int, float]] = [(1, 1.0)]
        self._by_rows: list[float] = [1.0, 1.0]
        self._changed = False
        self._break_even: tuple[int, float] | None = None

    @property
    def known(self) -> bool:
        """Whether a plain forward has been seen."""
        return self._pace.known

    @property
    def single_ms(self) -> float:
        """V(1) now, in milliseconds."""
        return self._pace.ms

    @property
    def stale(self) -> bool:
        """Whether a round should go without drafts, to measure what plain decoding costs now."""
        return self._pace.stale(self._round)

    def tick(self) -> None:
        """A round of decoding begins to count: measurements grow older."""
        self._round += 1
        self._changed |= self._round % _FINE == 0

    def add(self, rows: int, ms: float, *, plain: bool = False) -> None:
        """A forward of `rows` rows took `ms`. `plain`: none of them was a draft's (one row never is)."""
        plain = plain or rows == 1
        if rows > 1 and (single := self._pace.near(self._round)) is not None:
            self._learn(rows if rows <= _FINE else rows - rows % _COARSE, ms / single)
        if plain:
            self._pace.plain(ms, self.ratio(rows), self._round)
        else:
            self._pace.drafted(ms, self.ratio(rows))

    def _learn(self, rows: int, ratio: float) -> None:
        size = self._sizes.get(rows)
        if size is None or self._out_of_date(size):
            self._sizes[rows] = _Size(deque([ratio], WINDOW), self._round, ratio)
            self._changed = True
            return
        if not 1 / ODD < ratio / self.ratio(rows) < ODD:
            size.odd.append(ratio)
            if len(size.odd) < REPEATS:
                return
            size.ratios = deque(size.odd, WINDOW)
        else:
            size.ratios.append(ratio)
        size.odd.clear()
        size.at = self._round
        value = median(size.ratios)
        self._changed |= value != size.value
        size.value = value

    def _out_of_date(self, size: _Size) -> bool:
        return self._round - size.at > OUT_OF_DATE

    def ratio(self, rows: int) -> float:
        """V(rows)/V(1), at least 1: as measured, linear between, beyond with the mean slope so far."""
        if self._changed:
            self._rebuild()
        while len(self._by_rows) <= rows:
            self._by_rows.append(self._interpolate(len(self._by_rows)))
        return self._by_rows[rows]

    def break_even(self, margin: float) -> float:
        """The least chance of every draft token, given those before it, with which some draft pays: the
        smallest s with (1 + s + … + s^k) / V(1 + k) ≥ margin / V(1) for some k. 1 where none does.

        Looked up anew every `_FINE` rounds only.
        """
        age = self._round // _FINE
        if self._break_even is None or self._break_even[0] != age:
            ratios = np.array([self.ratio(1 + k) for k in range(1, LONGEST + 1)])
            low, high = 0.0, 1.0
            for _ in range(10):
                chance = (low + high) / 2
                expected = 1.0 + np.cumsum(np.cumprod(np.full(LONGEST, chance)))
                paying = bool((expected >= margin * ratios).any())
                low, high = (low, chance) if paying else (chance, high)
            self._break_even = age, high
        return self._break_even[1]

    def _rebuild(self) -> None:
        points = [(1, 1.0, 2 * WINDOW)]  # V(1)/V(1) is certain
        for rows, size in sorted(self._sizes.items()):
            if self._out_of_date(size):
                points.append((rows, min(size.value, 1.0 + PRIOR_SLOPE * (rows - 1)), 1))
            else:
                points.append((rows, size.value, len(size.ratios)))
        self._known = monotone([(rows, max(value, 1.0), weight) for rows, value, weight in points])
        self._by_rows = [1.0, 1.0]
        self._changed = False

    def _interpolate(self, rows: int) -> float:
        i = bisect_right(self._known, rows, key=lambda point: point[0])
        low, value = self._known[i - 1]
        if i == len(self._known):
            slope = (value - 1.0) / (low - 1) if low > 1 else PRIOR_SLOPE
            return value + slope * (rows - low)
        high, above = self._known[i]
        return value + (rows - low) / (high - low) * (above - value)
