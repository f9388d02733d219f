"""V(n) of several requests together, where a draft for one of them is another pass over the weights.

A forward that is not *ragged* (`Capabilities`) computes a row of each request in one pass. What a request has
beyond that is a pass of its own, which costs about what as many rows of a request alone do; or all requests
are filled up to as many rows, in one pass, where that costs less. So drafts of several requests are priced
each by itself, and what a forward took longer than a plain one is shared out among them as it was expected.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf

from foredraft.planner.ratios import LONGEST, Ratios

MEASURED = LONGEST + 1
"""Rows beyond which V(n) of one request is a guess: none are filled up to more."""

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
    """

    def __init__(self, like: InPasses | Ratios, now: int) -> None:
        """Begins as a smaller company's, or as that of a request alone."""
        self._even = Ratios()  # a pass of as many rows of each request
        self._apart = Ratios()  # and of one's
        apart = like if isinstance(like, Ratios) else like._apart
        self._even.seed(like.values(), now, like.measured)
        self._apart.seed(apart.values(), now, apart.measured)
        self._decoding = 1

    @property
    def measured(self) -> int:
        """As `Ratios.measured`, of passes over rows of all requests."""
        return self._even.measured

    def among(self, decoding: int) -> None:
        """From now on there are so many requests."""
        self._decoding = max(decoding, 1)

    def shapes(self, plain: int, count: int, now: int) -> Shapes:
        """Of forwards with `plain` rows besides drafts of up to `count` - 1 tokens each."""
        base = self._even.ratio(plain, now)
        passes = self._apart if self._apart.known else self._even
        added = [0.0, *passes.span(1, count - 1, now)] if count > 1 else [0.0]
        rows = self._even.span(0, MEASURED + 1, now)
        even = [rows[plain * size] if plain * size <= MEASURED else inf for size in range(2, count + 1)]
        return Shapes(base, base, 0.0, added, [base, *(max(base, price) for price in even)])

    def span(self, first: int, count: int, now: int) -> list[float]:
        """V(n)/V(1) of `count` sizes from `first` on."""
        many = self._decoding
        fewer = self._even.span(first, max(0, min(count, many - first)), now) if first < many else []
        longest = first + count - 1 - many
        if longest < 0:
            return fewer
        shapes = self.shapes(many, longest + 1, now)
        return fewer + [shapes.price([length]) for length in range(max(first - many, 0), longest + 1)]

    def ratio(self, rows: int, now: int) -> float:
        """V(rows)/V(1)."""
        return self._even.ratio(rows, now) if rows <= self._decoding else self.span(rows, 1, now)[0]

    def together(self, lengths: Sequence[int], now: int) -> float:
        """V/V(1) of a forward with drafts of these lengths."""
        return self.shapes(self._decoding, max(lengths, default=0) + 1, now).price(lengths)

    def learn(self, rows: int, ratio: float, now: int, lengths: Sequence[int] = ()) -> None:
        """A forward of `rows` rows, with drafts of these lengths, took `ratio` times a plain one of a request
        alone.
        """
        drafted = [length for length in lengths if length]
        if not drafted:
            self._even.learn(rows, ratio, now)
            return
        shapes = self.shapes(self._decoding, max(drafted) + 1, now)
        expected = sum(shapes.added[length] for length in drafted)
        even = shapes.even[max(drafted)]
        if even < shapes.base + expected:
            self._even.learn(self._decoding * (1 + max(drafted)), ratio, now)
            return
        share = max(ratio - shapes.base, 0.0) / expected
        for length in drafted:
            if length > 1:  # one row is taken to cost what it does alone
                self._apart.learn(length, shapes.added[length] * share, now)

    def beyond(self, rows: int) -> bool:
        """Whether nothing of this kind was measured, nor of a request alone."""
        return self._even.beyond(rows)

    def values(self) -> Mapping[int, float]:
        """What was measured of passes over rows of all requests."""
        return self._even.values()

    def row_price(self, now: int) -> float:
        """The least that a further row costs, as in `Ratios.row_price`: of all requests, filled up."""
        return min(self._apart.row_price(now), self._even.row_price(now))

    def break_even(self, margin: float, now: int, extra: float = 0.0) -> float:
        """As `Ratios.break_even`, of the passes."""
        return self._apart.break_even(margin, now, extra)
