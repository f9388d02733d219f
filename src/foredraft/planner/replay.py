"""What a rejected draft costs later, where a model computes accepted tokens again (`Rollback.SNAPSHOT`).

The rows that are owed after a rejection belong to the request's next forward. So a draft costs its own rows,
and those by the chance that it comes to that; while rows are owed, another rejection has them computed once
more.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from foredraft.types import Capabilities, Outcome, Rollback

_SLOPE_OVER = 8
"""Rows over which the cost of one more is averaged: a mean does not show a curve's steps."""


class Replay:
    """What is owed, request by request, by a model that takes back `free` rows for nothing; None: any number,
    and nothing is ever owed.
    """

    def __init__(self, free: int | None = None) -> None:
        self._free = free
        self._owed: dict[int, int] = {}

    @classmethod
    def of(cls, able: Capabilities) -> Replay:
        return cls(able.rollback_bound if able.rollback is Rollback.SNAPSHOT else None)

    def prices(self, request: int, survival: Sequence[float], ratio: Callable[[int], float]) -> list[float]:
        """What the first n tokens of a draft are expected to cost later, in plain rounds, for n from 0 on.

        `survival[i]` is the chance that token i and all before it are accepted, `ratio(n)` is V(n)/V(1).
        """
        prices = [0.0] * (len(survival) + 1)
        if self._free is None:
            return prices
        row = self.row(ratio)
        owed = self._owed.get(request, 0)
        reached = [1.0, *survival]
        for length in range(self._free + 1, len(prices)):
            # With one token more, ending after `accepted` tokens has become too early to be free.
            accepted = length - self._free - 1
            ends = max(0.0, reached[accepted] - reached[accepted + 1])
            prices[length] = prices[length - 1] + row * ends * (owed + accepted + 1)
        return prices

    def row(self, ratio: Callable[[int], float]) -> float:
        """What a row costs that is computed again, in plain rounds."""
        return (ratio(1 + _SLOPE_OVER) - 1.0) / _SLOPE_OVER

    def settle(self, request: int, outcome: Outcome) -> int:
        """A round is over: returns the rows that the request owes now."""
        rejected = len(outcome.draft) - outcome.accepted if outcome.draft else 0
        if self._free is None or rejected <= self._free:
            self._owed.pop(request, None)
            return 0
        self._owed[request] = self._owed.get(request, 0) + outcome.accepted + 1
        return self._owed[request]

    def forget(self, request: int) -> None:
        """The request is over."""
        self._owed.pop(request, None)
