"""V(n) of several requests together, where a draft for one of them is another pass over the weights.

A forward that is not *ragged* (`Capabilities`) computes a row of each request in one pass. What a request has
beyond that is a pass of its own, which costs about what as many rows of a request alone do; or all requests
are filled up to as many rows, in one pass, where that costs less. So drafts of several requests are priced
each by itself, and what a forward took longer than a plain one is shared out among them as it was expected.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import inf

from foretoken.planner.ratios import LONGEST, OUT_OF_DATE, PRIOR_SLOPE, STEP, Ratios

MEASURED = LONGEST + 1
"""Rows beyond which V(n) of one request is a guess: none are filled up to more."""

FRESH = 64
"""Rounds after which the prices of passes are worked out anew."""

ALIKE = 8
"""Requests beyond which numbers share a curve: up to 16, up to 32, …"""


def company_of(decoding: int) -> int:
    """The curve of so many requests decoding together: one for each number up to eight, then for 9 to 16 …"""
    return max(decoding - 1, 0) if decoding <= ALIKE else ALIKE // 2 + (decoding - 1).bit_length()


@dataclass(frozen=True, slots=True)
class Shapes:
    """What forwards cost in V(1), by what is drafted for whom."""

    base: float
    """The rows that there are without drafts."""
    plain: float
    """The next forward without drafts: with what its size takes if it is not that of the last one."""
    change: float
    """What another size takes, there and back."""
    added: Sequence[float]
    """By the tokens of a draft for one request: what it adds."""
    even: Sequence[float]
    """By the tokens of the longest draft: with all requests filled up to that, all in all."""

    def price(self, lengths: Sequence[int]) -> float:
        """With drafts of these lengths."""
        if not any(lengths):
            return self.plain
        passes = self.base + sum(map(self.added.__getitem__, lengths))
        return self.change + min(passes, self.even[max(lengths)])


class InPasses:
    """V(n)/V(1) of a company, with the questions of `Ratios`: there n rows are one of each request, and the
    others one request's draft. `now` arguments count rounds.

    A pass over rows of all requests begins as a smaller company's, or as one over as many rows of a request
    alone. Where such a pass was measured, larger ones are expected to be as much dearer: rows of several
    requests can take longer than one's, and V(1), which nobody measures meanwhile, may have been that of a
    quieter moment. So a plain forward never looks as dear as one with all requests filled up.
    """

    def __init__(self, like: InPasses | Ratios, now: int) -> None:
        self._even = Ratios()  # passes of as many rows of each request, as they were measured here
        self._like = Ratios()  # and as they were expected
        self._apart = Ratios()  # passes of one request's rows
        self._like.seed(like.values(), now)
        self._apart.seed((like if isinstance(like, Ratios) else like._apart).values(), now)
        self._decoding = 1
        self._begun = now
        self._drawn: tuple[int, list[float]] | None = None
        self._row_price: tuple[int, float] | None = None

    def among(self, decoding: int) -> None:
        """From now on there are so many requests."""
        self._decoding = max(decoding, 1)

    def _passes(self, rows: int, now: int) -> list[float]:
        """V/V(1) of passes of up to so many rows and more, as many of each request."""
        age = now // FRESH
        if self._drawn is None or self._drawn[0] != age or len(self._drawn[1]) <= rows:
            # As it was in the beginning: it is what measurements are compared with, and must not grow old.
            expected = self._like.span(0, max(rows, MEASURED) + 1, self._begun)
            sizes = [size for size in self._even.values() if 1 < size < len(expected)]
            prices = _through([(size, self._even.ratio(size, now)) for size in sizes], expected)
            if now - self._begun > OUT_OF_DATE:
                least = sizes[-1] if sizes else 1
                for size in range(least + 1, len(prices)):
                    prior = 1.0 + PRIOR_SLOPE * (size - 1)
                    prices[size] = min(prices[size], max(prices[least], prior))
            self._drawn = age, prices
        return self._drawn[1]

    def shapes(self, plain: int, count: int, now: int) -> Shapes:
        """Of forwards with `plain` rows besides drafts of up to `count` - 1 tokens each."""
        rows = self._passes(max(plain, MEASURED), now)
        base = rows[plain]
        added = [0.0, *self._apart.span(1, count - 1, now)] if count > 1 else [0.0]
        even = [rows[plain * size] if plain * size <= MEASURED else inf for size in range(2, count + 1)]
        return Shapes(base, base, 0.0, added, [base, *even])

    def span(self, first: int, count: int, now: int) -> list[float]:
        """V(n)/V(1) of `count` sizes from `first` on."""
        many = self._decoding
        fewer = self._passes(many, now)[first : min(first + count, many)]
        longest = first + count - 1 - many
        if longest < 0:
            return fewer
        shapes = self.shapes(many, longest + 1, now)
        return fewer + [shapes.price([length]) for length in range(max(first - many, 0), longest + 1)]

    def ratio(self, rows: int, now: int) -> float:
        """V(rows)/V(1)."""
        many = self._decoding
        return self._passes(many, now)[rows] if rows <= many else self.span(rows, 1, now)[0]

    def together(self, lengths: Sequence[int], now: int) -> float:
        """V/V(1) of a forward with drafts of these lengths."""
        return self.shapes(self._decoding, max(lengths, default=0) + 1, now).price(lengths)

    def learn(self, rows: int, ratio: float, now: int, lengths: Sequence[int] = ()) -> None:
        """A forward of `rows` rows, with drafts of these lengths, took `ratio` times a plain one of a request
        alone.
        """
        drafted = [length for length in lengths if length]
        if not drafted:
            self._learn_even(rows, ratio, now)
            return
        shapes = self.shapes(self._decoding, max(drafted) + 1, now)
        expected = sum(shapes.added[length] for length in drafted)
        even = shapes.even[max(drafted)]
        if even < shapes.base + expected:
            size = self._decoding * (1 + max(drafted))
            self._learn_even(size, ratio, now)
            return
        share = max(ratio - shapes.base, 0.0) / expected
        for length in drafted:
            if length > 1:  # one row is taken to cost what it does alone
                self._apart.learn(length, shapes.added[length] * share, now)

    def _learn_even(self, rows: int, ratio: float, now: int) -> None:
        self._even.expect(rows, self._passes(rows, now)[rows], now)
        self._even.learn(rows, ratio, now)
        self._drawn = None

    def beyond(self, rows: int) -> bool:
        """Whether nothing of this kind was measured, nor of a request alone."""
        known = [ratios for ratios in (self._like, self._even) if ratios.known]
        return bool(known) and all(ratios.beyond(rows) for ratios in known)

    def values(self) -> Mapping[int, float]:
        """What is known of passes over rows of all requests."""
        sizes = sorted({*self._like.values(), *self._even.values()})
        passes = self._passes(sizes[-1], self._drawn[0] * FRESH if self._drawn else 0)
        return {size: passes[size] for size in sizes}

    def row_price(self, now: int) -> float:
        """The least that a further row costs, as in `Ratios.row_price`: of all requests, filled up."""
        age = now // FRESH
        if self._row_price is None or self._row_price[0] != age:
            prices = self._passes(MEASURED, now)
            steps = [prices[size + STEP] - prices[size] for size in range(1, MEASURED + 1 - STEP)]
            self._row_price = age, max(min(steps) / STEP, 0.0)
        return min(self._apart.row_price(now), self._row_price[1])

    def break_even(self, margin: float, now: int, extra: float = 0.0) -> float:
        """As `Ratios.break_even`, of the passes."""
        return self._apart.break_even(margin, now, extra)


def _through(measured: Sequence[tuple[int, float]], expected: Sequence[float]) -> list[float]:
    """A curve through what was measured, of ascending sizes, that rises between them as the expected one
    does, and beyond them by the same factor. Smaller sizes are as expected, at most as dear as the first that
    was measured. It never falls.
    """
    if not measured:
        return list(expected)
    size, value = measured[0]
    prices = [min(price, value) for price in expected[:size]]
    prices.append(value)
    for (low, below), (high, above) in pairwise(measured):
        rise = expected[high] - expected[low]
        for size in range(low + 1, high + 1):
            share = (expected[size] - expected[low]) / rise if rise > 0.0 else (size - low) / (high - low)
            prices.append(max(prices[-1], below + share * (above - below)))
    last, value = measured[-1]
    for size in range(last + 1, len(expected)):
        prices.append(max(prices[-1], value * expected[size] / expected[last]))
    return prices
