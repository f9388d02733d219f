"""What one request may still lose by speculation, and when it next attempts a draft.

A request may lose `RATE` of its time and `START` of a plain round. What its drafts win is added to that
budget; what its drafts and its attempts cost is taken from it. No draft risks more than is there (`decide`),
and an attempt leaves what the last draft needed. After attempts that found nothing the request waits 1, 2, 4
… `MAX_WAIT` rounds (from the third on) before the next, unless the end of its text repeats earlier text.

The budget is in plain rounds: the time of a plain forward divided by the requests that share it. Every loss
is covered by the budget or by `decide.OVERDRAFT`. So a request that decodes alone loses at most `RATE` of its
time + `START` + `OVERDRAFT`, which is 3 % and half a plain round; requests that share forwards share their
budgets, and lose together no more than the sum. What draft models and heads read of a text is paid from what
requests that are over left of theirs (`draft_model`). Not in it: the first attempt of a model-free drafter
that was never measured.
"""

from __future__ import annotations

from collections.abc import Callable

RATE = 0.03
"""Share of its time that a request may lose."""

START = 0.25
"""Plain rounds that a request may lose at its beginning."""

RESERVE = 0.25
"""Plain rounds that an attempt leaves in the budget, before any draft showed what it needs."""

MAX_BUDGET = 16.0
"""Plain rounds that are saved up at most: what changes in a text is not paid for by what was won long ago."""

SMALL = 0.012
"""Plain rounds an attempt may cost to be made in every round."""

PATIENCE = 3
"""Attempts that found nothing, after which the waiting begins."""

MAX_WAIT = 32
"""Rounds between two attempts at most."""

REPEATED = 3
"""Tokens of the text's end that must repeat earlier text for an attempt out of turn …"""

GROWN = 1.5
"""… and the factor by which the repetition must have grown since an attempt that found nothing."""


class Account:
    """The budget and back-off of one request. `needed`: plain rounds that the last draft needed at least,
    which an attempt leaves in the budget. `left`: the budget if there were no `MAX_BUDGET`.
    """

    __slots__ = ("budget", "left", "misses", "needed", "tried_match", "wait")

    def __init__(self) -> None:
        self.budget = self.left = START
        self.needed = 0.0
        self.wait = 1
        self.misses = 0
        self.tried_match = 0.0

    def attempts(self, cost: float, budget: float, match_length: Callable[[], int]) -> bool:
        """Whether the request attempts a draft in the round that begins.

        An attempt costs `cost` plain rounds and `budget` is there for it. `match_length` gives the tokens of
        the text's end that repeat earlier text; it takes time, so it is called only if that decides.
        """
        if cost <= SMALL and budget >= 0.0:
            return True
        self.wait -= 1
        if budget < cost + self.needed:
            return False
        if self.wait <= 0 and budget >= cost + RESERVE:
            return True
        match = match_length()
        if match < self.tried_match:  # that repetition has ended
            self.tried_match = 0.0
        if match >= REPEATED and match > GROWN * self.tried_match:
            self.tried_match = match
            return True
        return False

    def settle(self, tokens: int, cost: float) -> None:
        """A round committed `tokens` and cost `cost` plain rounds, attempt and drafts included."""
        change = tokens - cost + RATE * tokens
        self.budget = min(self.budget + change, MAX_BUDGET)
        self.left += change

    def hit(self) -> None:
        """An attempt found a draft that began right, or looked as if it would."""
        self.misses, self.wait, self.tried_match = 0, 1, 0.0

    def miss(self) -> None:
        """An attempt found nothing useful."""
        self.misses += 1
        self.wait = min(2 ** max(self.misses - PATIENCE, 0), MAX_WAIT)
