"""What drafters whose tokens take real time may take in one round.

Asking for a draft is paid from the budget that verifies it: what is granted here is missing there. A draft
that was sampled is verified whole (`--verify rejection` or `block`), so its verification is granted with it;
how much of any other is verified is decided when it is known.
"""

from __future__ import annotations

from foredraft.planner.cost import CostCurve
from foredraft.protocols import RequestView


class Purse:
    """`left`: the plain rounds that this round's requests may lose together, and `overdraft` those by which
    drafts that turn out worthless may exceed it. `saved`: those that there are for reading besides.
    """

    def __init__(self, curve: CostCurve, left: float, overdraft: float, saved: float) -> None:
        self.left = left
        self._curve, self._overdraft, self._saved = curve, overdraft, saved
        self._granted: dict[tuple[str, int], tuple[int, float]] = {}
        self._verified = 0

    def grant(
        self,
        name: str,
        request: RequestView,
        tokens: int,
        price: float,
        *,
        fixed: float,
        reading: float,
        leaving: float,
    ) -> int:
        """How many of `tokens` draft tokens the drafter may have for the request. One takes `price` plain
        rounds, asking at all `fixed`, and what has to be read first `reading`; `leaving` is left to verify
        the draft with.
        """
        if self.left < 0.0 or not tokens:
            return 0
        saved = min(self._saved, reading)
        fixed += reading - saved
        whole = samples(request)
        if whole:
            costs = [fixed + n * price + it for n, it in enumerate(self._verifying(tokens))]
            within = [n for n, cost in enumerate(costs) if cost <= self.left + self._overdraft]
            tokens = max(within, default=0)
            cost = costs[tokens]
        else:
            room = self.left - fixed - leaving
            if room < price:
                return 0
            tokens = min(tokens, int(room / price)) if price else tokens
            cost = fixed + tokens * price
        if tokens:
            self.left -= cost
            self._saved -= saved
            self._granted[name, request.id] = (0, 0.0) if whole else (tokens, price)
            self._verified += tokens if whole else 0
        return tokens

    def drafted(self, name: str, request: int, tokens: int) -> None:
        """Take back what was granted for a draft that has `tokens` tokens, and not spent. The token before
        which a draft ends was computed, too.
        """
        granted, price = self._granted.get((name, request), (0, 0.0))
        self.left += max(0, granted - tokens - 1) * price

    def _verifying(self, tokens: int) -> list[float]:
        """What verifying 0 to `tokens` draft tokens costs at most, beside those that are verified anyway."""
        curve = self._curve
        first = 0 if curve.in_passes else self._verified  # a draft that is a pass adds what it does alone
        most = [curve.costs(1)[0], *curve.bounds(first + tokens + 1)[1:]]
        return [(it - most[first]) / curve.per_request for it in most[first:]]


def samples(request: RequestView) -> bool:
    """Whether drafts for the request are drawn from the drafter's distribution, and so verified whole."""
    return request.params.verify != "match" and request.params.temperature > 0.0
