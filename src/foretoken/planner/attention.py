"""How often drafters that cost next to nothing are asked: not every round where they find nothing to say.

Next to nothing is still some tenths of a millisecond between two forwards, when the processor's caches have
just been used for something else: measured, 4 % of a plain round of a 135M model. So a request whose drafts
have not been worth verifying for a while is asked every few rounds only, until something promising turns up.
"""

from __future__ import annotations

PATIENCE = 4
"""Rounds without a promising draft after which a request is asked less often."""

EVERY = 4
"""Then it is asked in every n-th round at most: text that begins to repeat is noticed a few tokens later."""

SHARE = 0.003
"""Plain rounds that asking may cost in every round while nothing is found. Drafters that cost no more are
asked in each."""

AFTER_A_HIT = 1
"""Rounds in which a request is asked again after a draft that turned out to begin right."""

PROMISING = 0.75
"""A first token that survives with this chance may begin a longer match, whatever a row costs."""


def promising(survival: float, row_cost: float) -> bool:
    """Whether a draft may be worth a row: its first token survives with this chance, and one more row costs
    `row_cost` plain rounds.
    """
    return survival > 0 and survival >= min(PROMISING, row_cost)


def interval(cost: float) -> int:
    """In every how many rounds drafters that cost `cost` plain rounds are asked while nothing pays."""
    return min(EVERY, 1 + int(cost / SHARE))


class Attention:
    """For each request, how many rounds it is since a draft was promising."""

    def __init__(self) -> None:
        self._idle: dict[int, int] = {}

    def tick(self, request: int, every: int = EVERY) -> bool:
        """A round begins: whether the request's drafters are asked in it, while they find nothing in one of
        `every`.
        """
        idle = self._idle[request] = self._idle.get(request, -1) + 1
        return idle <= PATIENCE or idle % every == 0

    def note(self, request: int, survival: float, row_cost: float) -> None:
        """The best draft of this round: its first token survives with this chance (0: there was none), and
        one more row costs `row_cost` plain rounds.
        """
        if promising(survival, row_cost):
            self._idle[request] = 0

    def wake(self, request: int) -> None:
        """A draft, verified or not, turned out to begin right: whatever was estimated, ask again soon."""
        if self._idle.get(request, 0) > PATIENCE - AFTER_A_HIT:
            self._idle[request] = PATIENCE - AFTER_A_HIT

    def forget(self, request: int) -> None:
        """The request is over."""
        self._idle.pop(request, None)
