"""How often drafters that cost next to nothing are asked: as often as they earn.

Next to nothing is still some tenths of a millisecond between two forwards, when the processor's caches have
just been used for something else: measured, 5 to 7 % of a plain round of a 135M model. So every request has
a credit for asking, in plain rounds: it earns a little with each round and a part of whatever drafting saves,
and asking spends what it costs (`overhead`). While drafts look promising the credit is spent at once, and
otherwise slowly, so that some is left for when a text begins to repeat itself.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

START = 0.15
"""Credit a request begins with."""

INCOME = 0.01
"""Credit of each round: the share of the time that asking may take though it brings nothing. Drafters that
cost no more are asked in every round."""

EARNED = 0.25
"""Share of what drafting saved that may be spent on asking."""

MOST = 1.0
"""Credit is not saved up for longer than this."""

PATIENCE = 4
"""Rounds without a promising draft after which a request is asked less often, so that credit is left."""

SAVED = 0.5
"""Share of the income that is then saved."""

AFTER_A_HIT = 1
"""Rounds in which a request is asked again after a draft that turned out to begin right."""

LONGEST_REST = 16
"""Rounds that `rest` looks ahead."""

PROMISING = 0.75
"""A first token that survives with this chance may begin a longer match, whatever a row costs."""


def promising(survival: float, row_cost: float) -> bool:
    """Whether a draft may be worth a row: its first token survives with this chance, and one more row costs
    `row_cost` plain rounds.
    """
    return survival > 0 and survival >= min(PROMISING, row_cost)


def _asks(idle: int, credit: float, cost: float) -> bool:
    """Whether a request asks that has not seen a promising draft for `idle` rounds, if that costs `cost`."""
    every = 1 if idle <= PATIENCE else 1 + int(cost / (SAVED * INCOME))
    return not idle % every and credit >= cost


@dataclass(slots=True)
class _Request:
    """Its credit, and rounds since a draft of it was promising."""

    credit: float = START
    idle: int = -1


class Attention:
    """The credit of all requests, and how long it is since their drafts were promising."""

    def __init__(self) -> None:
        self._requests: dict[int, _Request] = {}

    def tick(self, request: int, cost: float, *, promising: bool = False) -> bool:
        """A round begins: whether the request's drafters are asked in it, which costs `cost` plain rounds.
        `promising`: a draft is likely to pay (`hints`), so that the request may run into debt.
        """
        state = self._requests.setdefault(request, _Request())
        state.idle += 1
        if cost <= INCOME:
            return True
        state.credit = min(MOST, state.credit + INCOME)
        if not (promising and state.credit >= 0.0) and not _asks(state.idle, state.credit, cost):
            return False
        state.credit -= cost
        return True

    def rest(self, requests: Iterable[int], cost: float) -> int:
        """In how many of the next rounds, `LONGEST_REST` at most, `tick` would say no for all of these."""
        rest = 0 if cost <= INCOME else LONGEST_REST
        for request in requests:
            rest = self._rest(request, cost, rest)
        return rest

    def _rest(self, request: int, cost: float, most: int) -> int:
        """The rest of one request, `most` rounds at most."""
        state = self._requests.get(request)
        if state is None:
            return 0
        credit = state.credit
        for rounds in range(1, most + 1):
            credit = min(MOST, credit + INCOME)
            if _asks(state.idle + rounds, credit, cost):
                return rounds - 1
        return most

    def rested(self, request: int, rounds: int) -> None:
        """So many rounds of a rest have gone by."""
        state = self._requests.get(request)
        if state is not None:
            state.idle += rounds
            for _ in range(rounds):  # as `tick` adds it, to the last bit
                state.credit = min(MOST, state.credit + INCOME)

    def saved(self, request: int, rounds: float) -> None:
        """Drafting saved the request so many plain rounds; what it lost is counted elsewhere."""
        state = self._requests.get(request)
        if state is not None and rounds > 0:
            state.credit = min(MOST, state.credit + EARNED * rounds)

    def note(self, request: int, survival: float, row_cost: float) -> None:
        """The best draft of this round: its first token survives with this chance (0: there was none), and
        one more row costs `row_cost` plain rounds.
        """
        if promising(survival, row_cost):
            self._requests.setdefault(request, _Request()).idle = 0

    def wake(self, request: int) -> None:
        """A draft, verified or not, turned out to begin right: whatever was estimated, ask again soon."""
        state = self._requests.get(request)
        if state is not None:
            state.idle = min(state.idle, PATIENCE - AFTER_A_HIT)

    def forget(self, request: int) -> None:
        """The request is over."""
        self._requests.pop(request, None)
