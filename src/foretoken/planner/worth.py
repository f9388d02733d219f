"""Whether a drafter that takes real time (a draft model) is worth asking, before it is asked.

Model-free drafters cost microseconds and always draft. For the others the question comes before the draft:
with what was accepted of its drafts lately and what a drafted token costs, which length would pay best, if
any? One that does not pay is still tried now and then, within a small share of the time ("probing"), so that
it is found out when that changes.
"""

from __future__ import annotations

from collections.abc import Callable

from foretoken.types import DraftLimit

FREE = 0.05
"""A drafter that costs less than this share of a plain forward always drafts: that is how it is measured."""

PROBE_BUDGET = 0.01
"""Share of the time that may go into trying drafters that do not seem to pay."""

PROBE_TOKENS = 4
LONGEST = 64
FORGET = 0.97
_FIRST_GUESS = 0.6


class DrafterWorth:
    """What one drafter costs and brings, forgetting old rounds."""

    def __init__(self) -> None:
        self._ms = self._tokens = self._drafts = 0.0
        self._accepted, self._tried = 4 * _FIRST_GUESS, 4.0
        self.probing = False

    def drafted(self, ms: float, tokens: int) -> None:
        """It was asked: it took `ms` for `tokens` tokens (0: it had nothing to propose)."""
        self._ms = FORGET * self._ms + ms
        self._tokens = FORGET * self._tokens + tokens
        self._drafts = FORGET * self._drafts + 1

    def verified(self, accepted: int, length: int) -> None:
        """Its draft of `length` tokens was verified. Only tokens whose ancestors were right were tried."""
        self._accepted = FORGET * self._accepted + accepted
        self._tried = FORGET * self._tried + accepted + (accepted < length)

    @property
    def chance(self) -> float:
        """P(a token is accepted | those before it were)."""
        return self._accepted / self._tried

    def is_free(self, plain_ms: float) -> bool:
        """Whether asking costs next to nothing beside a plain forward (or was never measured)."""
        return self._drafts == 0 or self._ms / self._drafts <= FREE * plain_ms

    def limit(
        self, ratio: Callable[[int], float], plain_ms: float, *, decoding: int, margin: float, may_probe: bool
    ) -> DraftLimit | None:
        """How far it may draft for each request; None where plain decoding is faster.

        `ratio(n)` is V(n)/V(1), `decoding` the requests that share the forward.
        """
        self.probing = False
        if self.is_free(plain_ms):
            return DraftLimit(LONGEST)
        token_cost = self._ms / max(1.0, self._tokens) / plain_ms
        plain = ratio(decoding)
        best, length = margin, 0
        survival = expected = 1.0
        for depth in range(1, LONGEST + 1):
            survival *= self.chance
            expected += survival
            rate = expected * plain / (ratio(decoding * (1 + depth)) + decoding * depth * token_cost)
            if rate > best:
                best, length = rate, depth
        if length:
            # One more token pays while its survival, at the rate reached, buys more than its own cost.
            return DraftLimit(length, min_survival=min(0.9, best * token_cost / max(plain, 1.0)))
        self.probing = may_probe
        return DraftLimit(PROBE_TOKENS) if may_probe else None
