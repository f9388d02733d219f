"""What the drafts of a round would cost, as its candidates are compared: looked up once for all of them."""

from __future__ import annotations

from collections.abc import Sequence

from foredraft.planner.cost import CostCurve
from foredraft.planner.replay import Replay
from foredraft.types import Load


class Prices:
    """V(n) of the next forward, and what its drafts cost besides."""

    def __init__(self, curve: CostCurve, replay: Replay) -> None:
        self._curve = curve
        self._replay = replay
        self._known: dict[int, list[float]] = {}

    def renew(self) -> None:
        """Another round: what was looked up for the last one is out of date."""
        self._known = {}

    def of(self, rows: int, count: int) -> Sequence[float]:
        """`CostCurve.prices` of at least so many sizes: the same for all drafts of a round."""
        prices = self._known.get(rows)
        if prices is None or len(prices) < count:
            prices = self._known[rows] = self._curve.prices(rows, count)
        return prices

    def extra_rounds(self, request: int, chain: Sequence[float], load: Load) -> list[float]:
        """What 0, 1, 2, … tokens cost all requests together beyond a plain round, in turns of one request
        (`CostCurve.turn`), if a draft is verified of which `chain` is the survival.
        """
        later = self._replay.prices(request, chain, self._curve.ratio)
        costs, turn = self.of(load.decoding, len(chain) + 1), self._curve.turn(load.decoding)
        first = costs[0]
        return [(cost - first + owed) / turn for cost, owed in zip(costs, later, strict=False)]

    def peak_rate(
        self, request: int, survivals: Sequence[float], load: Load, costs: Sequence[float]
    ) -> tuple[float, int]:
        """The best rate of any number of these tokens, and that number. `costs[n]`: V with n tokens."""
        expected, best, size = float(load.decoding), 0.0, 0
        prices = self._replay.prices(request, survivals, self._curve.ratio)
        for depth, survival in enumerate(survivals, 1):
            expected += survival
            rate = expected / (costs[depth] + prices[depth])
            if rate > best:
                best, size = rate, depth
        return best, size

    def any_tree_could_pay(self, survivals: Sequence[Sequence[float]], rows: int) -> bool:
        """Whether any tree beside `rows` could: its nodes are no likelier than the likeliest token."""
        likeliest, costs = max(survival[0] for survival in survivals), self.of(rows, 64)
        return any(costs[size] < costs[0] * (1.0 + likeliest * size) for size in (1, 3, 7, 15, 31, 63))
