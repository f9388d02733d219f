"""How much a request may lose: what it has won so far, and a little.

A chance estimate is right on average and wrong on some prompts; a short answer has no time to make up for a
few bad drafts. So every request has a stake, in units of a plain round: it starts small, grows by a small
share of a round with every token and by whatever drafting wins, shrinks by what it loses, and no draft may
risk more. That bounds the slowdown of any request, whatever the estimates say.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

START = 0.05
"""Plain rounds that a request may lose before it has won anything."""

SHARE = 0.02
"""Share of its time that a request may lose in the long run."""

MOST = 32.0
"""What was won is not saved up without limit: text that changes must not be paid for by text long past."""


class Stakes:
    """The stakes of all requests."""

    def __init__(self) -> None:
        self._stakes: dict[int, float] = {}

    def cut(self, request: int, survivals: Sequence[float], ratio: Callable[[int], float]) -> int:
        """How many tokens of a draft may be verified: as many as the stake covers.

        The risk of a draft is what its rows cost beyond a plain round, times the chance that it is not right
        to its end; squaring the survival counts an estimate near 1 as less certain than it says. `ratio(n)`
        is what the request costs with n rows, in plain rounds.
        """
        stake = self._stakes.get(request, START)
        length = len(survivals)
        while length and (ratio(1 + length) - 1.0) * (1.0 - survivals[length - 1] ** 2) > stake:
            length -= 1
        return length

    def settle(self, request: int, committed: int, cost: float) -> None:
        """A round committed `committed` tokens and cost this request `cost` plain rounds."""
        stake = self._stakes.get(request, START) + committed * (1.0 + SHARE) - cost
        self._stakes[request] = min(stake, MOST)

    def forget(self, request: int) -> None:
        """The request is over."""
        self._stakes.pop(request, None)
