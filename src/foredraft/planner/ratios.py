"""V(n)/V(1) at one depth of context: what was measured of each number of rows, and a curve through that.

A size is not measured any more once its drafts look too dear, so nothing measured is believed for good, and
little is not believed at once: see `_Size`, `SURE`, and `monotone`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from foredraft.planner.monotone import monotone
from foredraft.planner.tables.window import WINDOW, Window

PRIOR_SLOPE = 0.45
"""Cost of one more row relative to V(1), before anything was measured: a CPU's. Pessimistic on purpose."""

FAR_ABOVE = 1.5
"""Times the prior. A further row then costs 0.7 plain forwards. Processors without kernels for few rows, and
deep contexts, were measured at 1.1 to 1.2 times it."""

OUT_OF_DATE = 1000
"""Rounds after which a measurement is believed only where it is no dearer than the prior."""

ODD = 3.0
"""A forward this many times dearer or cheaper than it should be is noise …"""

REPEATS = 8
"""… unless that happens this many times running."""

SURE = 5
"""Measurements of all sizes together before they may make drafts look dearer than the prior does. One forward
in a busy moment would, for every size at once, and what looks too dear is not measured again."""

SEED_WEIGHT = 3
"""Measurements that a value from elsewhere counts for: a stored profile's, another depth's."""

LONGEST = 63
"""Draft tokens up to which lengths are compared."""

BEYOND = 0.5
"""Beyond the largest size measured a row is taken to cost this share of what one cost in the last doubling. A
curve that flattens out would never be seen otherwise; where it does not, one draft shows it."""

WORTH_IT = 0.01
"""Change of a value, relative to itself, from which the curve is drawn anew: that takes 0.1 ms and more."""

_FINE, _COARSE = 64, 16
_STEP = 8
"""Kernels take four or eight rows at a time: single rows are free now and then."""


_CHANCES = np.arange(1, 65) / 64
_LENGTHS = np.arange(1, LONGEST + 1)
_EXPECTED = 1.0 + np.cumsum(_CHANCES[:, None] ** _LENGTHS, axis=1)
"""Expected tokens, of shape (chances, draft lengths): of drafts whose tokens are all as likely."""


def far_above_prior(ratios: Mapping[int, float]) -> bool:
    """Whether V(n)/V(1) of some size, by rows, is so far above the prior that hardly any draft would pay."""
    return any(ratio > FAR_ABOVE * (1.0 + PRIOR_SLOPE * (rows - 1)) for rows, ratio in ratios.items())


def _least_chance(wanted: npt.NDArray[np.float64]) -> float:
    """The least chance of every token with which some draft is expected to bring what is wanted of its
    length, of shape (draft lengths,); 1 where none is.
    """
    paying = (wanted <= _EXPECTED).any(axis=1)
    if not paying.any():
        return 1.0
    high = float(_CHANCES[paying.argmax()])
    low = high - _CHANCES[0]
    for _ in range(4):
        chance = (low + high) / 2
        pays = bool((1.0 + np.cumsum(chance**_LENGTHS) >= wanted).any())
        low, high = (low, chance) if pays else (chance, high)
    return high


@dataclass(slots=True)
class _Size:
    """What is known of one number of rows."""

    ratios: Window
    at: int
    value: float
    drawn: float = 0.0
    """The value that the curve was drawn through."""
    odd: list[float] = field(default_factory=list)


class Ratios:
    """V(n)/V(1). `now` arguments count rounds, to tell how old a measurement is."""

    def __init__(self) -> None:
        self._sizes: dict[int, _Size] = {}
        self._measured = 0
        self._known: list[tuple[int, float]] = [(1, 1.0)]
        self._by_rows: list[float] = [1.0, 1.0]
        self._rebuilt = 0
        self._changed = False
        self._break_even: tuple[int, float] | None = None
        self._row_price: tuple[int, float] | None = None

    @property
    def measured(self) -> int:
        """Measurements that there were, those that a value from elsewhere counts for included."""
        return self._measured

    def seed(self, ratios: Mapping[int, float], now: int, measured: int | None = None) -> None:
        """Values from elsewhere, to begin with, of so many measurements; `SEED_WEIGHT` each unless said."""
        for rows, ratio in ratios.items():
            if rows > 1:
                self._sizes[rows] = _Size(Window([ratio] * SEED_WEIGHT), now, ratio)
        weight = SEED_WEIGHT * len(self._sizes)
        self._measured = max(self._measured, weight if measured is None else min(measured, weight))
        self._changed = True

    @property
    def known(self) -> bool:
        """Whether more was seen than single rows."""
        return bool(self._sizes)

    def values(self) -> dict[int, float]:
        """What was measured of each size."""
        return {1: 1.0, **{rows: size.value for rows, size in sorted(self._sizes.items())}}

    def beyond(self, rows: int) -> bool:
        """Whether smaller sizes were measured, and none so large."""
        return bool(self._sizes) and rows > max(self._sizes)

    def learn(self, rows: int, ratio: float, now: int) -> None:
        """A forward of `rows` rows took `ratio` times as long as one of 1 row at about the same time."""
        rows = rows if rows <= _FINE else rows - rows % _COARSE
        self._measured += 1
        self._changed |= self._measured == SURE
        size = self._sizes.get(rows)
        if size is None or now - size.at > OUT_OF_DATE:
            self._sizes[rows] = _Size(Window([ratio]), now, ratio)
            self._changed = True
            return
        if not 1 / ODD < ratio / self.ratio(rows, now) < ODD:
            size.odd.append(ratio)
            if len(size.odd) < REPEATS:
                return
            size.ratios = Window(size.odd)
        else:
            size.ratios.add(ratio)
        size.odd.clear()
        size.at = now
        size.value = size.ratios.median()
        self._changed |= abs(size.value - size.drawn) > WORTH_IT * size.drawn

    def ratio(self, rows: int, now: int) -> float:
        """V(rows)/V(1), at least 1: as measured, linear between; for what lies beyond, see `BEYOND`."""
        return self._upto(rows, now)[rows]

    def span(self, first: int, count: int, now: int) -> list[float]:
        """`ratio` of `count` sizes from `first` on, at once."""
        return self._upto(first + count - 1, now)[first : first + count]

    def _upto(self, rows: int, now: int) -> list[float]:
        if self._changed or now - self._rebuilt >= _FINE:
            self._rebuild(now)
        if len(self._by_rows) <= rows:
            self._extend(rows)
        return self._by_rows

    def break_even(self, margin: float, now: int, extra: float = 0.0) -> float:
        """The least chance of every draft token, given those before it, with which some draft pays: the
        smallest s with (1 + s + … + s^k) / (V(1 + k) + `extra`) ≥ margin / V(1) for some k. 1 where none
        does.

        Looked up anew every `_FINE` rounds only.
        """
        age = now // _FINE
        if self._break_even is None or self._break_even[0] != age:
            wanted = margin * (extra + np.array(self.span(2, LONGEST, now)))
            self._break_even = age, _least_chance(wanted)
        return self._break_even[1]

    def row_price(self, now: int) -> float:
        """The least that a further row costs on average over any `_STEP` rows, up to the longest draft: a
        token that is less likely than this never pays. Looked up anew every `_FINE` rounds only.
        """
        age = now // _FINE
        if self._row_price is None or self._row_price[0] != age:
            costs = np.array(self.span(1, LONGEST + 1, now))
            self._row_price = age, max(float((costs[_STEP:] - costs[:-_STEP]).min()) / _STEP, 0.0)
        return self._row_price[1]

    def _rebuild(self, now: int) -> None:
        points = [(1, 1.0, 2 * WINDOW)]  # V(1)/V(1) is certain
        sure = self._measured >= SURE
        for rows, size in sorted(self._sizes.items()):
            value, weight = size.value, len(size.ratios)
            size.drawn = value
            if now - size.at > OUT_OF_DATE:
                weight = 1
            if not sure or now - size.at > OUT_OF_DATE:
                value = min(value, 1.0 + PRIOR_SLOPE * (rows - 1))
            points.append((rows, max(value, 1.0), weight))
        self._known = monotone(points)
        self._by_rows = [1.0, 1.0]
        self._changed, self._rebuilt = False, now

    def _extend(self, most: int) -> None:
        """Fill `_by_rows` in, up to so many rows."""
        known, by_rows = self._known, self._by_rows
        i = bisect_right(known, len(by_rows), key=lambda point: point[0])
        while len(by_rows) <= most and i < len(known):
            (low, value), (high, above) = known[i - 1], known[i]
            by_rows += [
                value + (rows - low) / (high - low) * (above - value)
                for rows in range(len(by_rows), min(high, most + 1))
            ]
            i += 1
        if len(by_rows) <= most:
            (low, value), slope = known[-1], self._slope_beyond()
            by_rows += [value + slope * (rows - low) for rows in range(len(by_rows), most + 1)]

    def _slope_beyond(self) -> float:
        last, value = self._known[-1]
        if last == 1:
            return PRIOR_SLOPE
        half = max(last // 2, 1)
        below, least = next(point for point in reversed(self._known) if point[0] <= half)
        mean = (value - 1.0) / (last - 1)
        return BEYOND * max((value - least) / (last - below), mean / 2)
