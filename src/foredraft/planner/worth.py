"""Whether a drafter that takes real time (a draft model) is worth asking, before it is asked.

Model-free drafters cost microseconds and always draft. For the others the question comes before the draft:
with what was right of its drafts lately and what a drafted token costs, which length would pay best, if any?
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from foredraft.planner.tables.window import Window, median
from foredraft.types import DraftLimit

FREE = 0.07
"""A drafter that costs less than this share of a plain forward is asked as attention pays for it
(`attention`): that is how it is measured. Beside forwards of 5 ms `suffix` takes 5 % of one."""

STAYS_FREE = 0.15
"""And it goes on to be asked so up to this: what it costs follows the machine, and it is still no draft
model."""

LONGEST = 64
FORGET = 0.95
_FIRST_GUESS = 0.6
_NEGLIGIBLE = 0.02
_LATEST = 3


@dataclass(frozen=True, slots=True)
class Offer:
    """How far a drafter should draft, and the rate that promises, relative to plain decoding."""

    limit: DraftLimit
    rate: float


class DrafterWorth:
    """What one drafter costs, in plain rounds, and brings."""

    def __init__(self) -> None:
        self._asks = Window()
        self.asking = 0.0
        """What asking it costs, in plain rounds."""
        self.free = False
        """Whether asking costs next to nothing."""
        self._token_costs = Window()
        self._right, self._tried = 4 * _FIRST_GUESS, 4.0

    @property
    def measured(self) -> bool:
        """Whether anything is known of its cost."""
        return len(self._asks) > 0

    @property
    def chance(self) -> float:
        """P(a token is accepted | those before it were)."""
        return self._right / self._tried

    @property
    def token_cost(self) -> float:
        """Of a drafted token. That it became cheaper is believed at once, dearer only after many rounds: a
        stall passes, and a drafter that is not asked could not show it.
        """
        if not len(self._token_costs):
            return 0.0
        return min(self._token_costs.median(), median(self._token_costs.latest(_LATEST)))

    def drafted(self, cost: float, tokens: int, asked: float | None = None) -> None:
        """It was asked: that cost `cost` plain rounds for `tokens` tokens (0: it had nothing to propose).
        `asked` is what asking would have cost, where that was cut short.
        """
        self._asks.add(cost if asked is None else asked)
        self.asking = self._asks.median()
        self.free = self.asking <= (STAYS_FREE if self.free else FREE)
        if tokens:
            self._token_costs.add(cost / tokens)

    def recall(self, asking: float) -> None:
        """It is one of those that cost next to nothing: asking it took so much in an earlier run."""
        self._asks.add(asking)
        self.asking = asking
        self.free = asking <= STAYS_FREE

    def scored(self, right: int, wrong: int) -> None:
        """Of its proposals so many were right and wrong, of those whose ancestors were right."""
        self._right = FORGET * self._right + right
        self._tried = FORGET * self._tried + right + wrong

    def offer(
        self, even: Callable[[int], float], *, decoding: int, margin: float, resize: float = 0.0
    ) -> Offer | None:
        """How far it should draft for each request; None where plain decoding is faster.

        `even(n)` is V/V(1) of a forward with n rows of each of the `decoding` requests, `resize` what going
        back to a plain one takes, in V(1).
        """
        token_cost, chance, plain = self.token_cost, self.chance, even(1)
        best, length = margin, 0
        survival = expected = 1.0
        for depth in range(1, LONGEST + 1):
            survival *= chance
            expected += survival
            cost = even(1 + depth) + resize + decoding * depth * token_cost
            rate = expected * plain / cost
            if rate > best:
                best, length = rate, depth
            if survival < _NEGLIGIBLE:
                break
        if not length:
            return None
        # One more token pays while its survival, at the rate reached, buys more than its own cost.
        return Offer(DraftLimit(length, min_survival=min(0.9, best * token_cost / max(plain, 1.0))), best)
