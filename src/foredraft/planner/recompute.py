"""What a rejected draft costs later, where a model computes accepted tokens again (`Rollback.SNAPSHOT`).

After a rejection the accepted rows belong to the request's next forward. So a draft costs its own rows, and
the accepted ones by the probability that it comes to that; another rejection before they are computed adds to
them.
"""

from __future__ import annotations

from collections.abc import Sequence

from foredraft.types import Capabilities, Outcome, Rollback


class Recompute:
    """The rows to be computed again of each request, for a model of these `capabilities`."""

    def __init__(self, capabilities: Capabilities) -> None:
        snapshot = capabilities.rollback is Rollback.SNAPSHOT
        self._free = capabilities.rollback_bound if snapshot else None
        """Rows that can be rejected at no cost; None: any number."""
        self._rows: dict[int, int] = {}

    @property
    def needed(self) -> bool:
        """Whether anything is ever computed again."""
        return self._free is not None

    def costs(self, request: int, survival: Sequence[float], row_cost: float) -> list[float]:
        """What the first n tokens of a draft are expected to cost later, for n from 0 on, where a row costs
        `row_cost`.
        """
        costs = [0.0] * (len(survival) + 1)
        if self._free is None:
            return costs
        rows = self._rows.get(request, 0)
        reached = [1.0, *survival]
        for length in range(self._free + 1, len(costs)):
            # With one token more, ending after `accepted` tokens has become too early to be free.
            accepted = length - self._free - 1
            ends = max(0.0, reached[accepted] - reached[accepted + 1])
            costs[length] = costs[length - 1] + row_cost * ends * (rows + accepted + 1)
        return costs

    def settle(self, request: int, outcome: Outcome) -> int:
        """A round is over. Returns the rows that the request's next forward computes again."""
        rejected = len(outcome.draft) - outcome.accepted if outcome.draft else 0
        if self._free is None or rejected <= self._free:
            self._rows.pop(request, None)
            return 0
        self._rows[request] = self._rows.get(request, 0) + outcome.accepted + 1
        return self._rows[request]

    def forget(self, request: int) -> None:
        """The request is over."""
        self._rows.pop(request, None)
