"""How often drafters that cost next to nothing are asked: as often as they earn.

Next to nothing is still some tenths of a millisecond between two forwards, when the processor's caches have
just been used for something else: measured, 5 to 7 % of a plain round of a 135M model. So every request has
a credit for asking, in plain rounds: it earns a little with each round and a part of whatever drafting saves,
and asking spends what it costs (`overhead`). While drafts look promising the credit is spent at once, and
otherwise slowly, so that some is left for when a text begins to repeat itself.

Asking for some requests takes much less than asking for each by itself (measured: 1.3 ms for one, 1.6 for
four, 3.8 for eight of which drafters have not heard for long). So those for whom nothing looks promising are
asked in the same rounds and share what that takes.

A plain round here is a request's share of one: V(n) ÷ n where n requests decode together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from foredraft.planner.income import INCOME, Income
from foredraft.planner.stake import CERTAIN

DEAR = 0.1
"""A question that takes more plain rounds is dear: forwards are short then, and what an answer of ten tokens
may lose is soon lost.
"""

START = 0.07
"""Credit a request begins with, where a question is not dear. A dear one has to be earned: of an answer of
ten tokens it would take two rounds in a hundred.
"""

EARLIEST = 1
"""Rounds before a request's first question, unless a draft is likely to pay: one token of an answer says
little of what comes next, two may have stood somewhere before.
"""

EARNED = 0.25
"""Share of what drafting saved that may be spent on asking; a request's is what it saved on balance (`OWED`).
"""

OWED = 8.0
"""What drafts lost a request has to be saved again before it earns, up to so many plain rounds: text that
changes must not pay for text long past."""

MOST = 1.0
"""Credit is not saved up for longer than this, or than for one question where that takes more."""

PATIENCE = 4
"""Rounds without a promising draft after which a request is asked less often, so that credit is left."""

SAVED = 0.5
"""Share of the income that is then saved."""

FURTHER = 0.22
"""What asking takes for each request beyond the first, of what it takes for that one."""

AFTER_A_HIT = 1
"""Rounds in which a request is asked again after a draft that turned out to begin right."""

LONGEST_REST = 32
"""Rounds that `rest` looks ahead."""

LENT = 0.3
"""Of what asking takes, where a draft is likely to pay, so much need not be there yet, times a power of the
chance with which its first token comes, as with a draft's advance (`CERTAIN`): an answer may be over before
it has earned what was lent."""

PROMISING = 0.75
"""A first token that survives with this chance may begin a longer match, whatever a row costs."""

NOBODY: Mapping[int, float] = MappingProxyType({})
"""Of no request a draft is likely to pay."""


def promising(survival: float, row_cost: float, *, pays: bool) -> bool:
    """Whether a draft may be worth a row: its first token survives with this chance, and one more row costs
    `row_cost` plain rounds. Where that is more than any token is worth, only a draft that `pays` is.
    """
    if row_cost > 1.0:
        return pays
    return survival > 0 and survival >= min(PROMISING, row_cost)


def times(asked: int) -> float:
    """What asking for so many requests takes, of what it takes for one."""
    return 1.0 + FURTHER * (asked - 1)


@dataclass(slots=True)
class _Request:
    """Its credit, rounds since a draft of it was promising, whether it was ever asked, what drafting saved it
    on balance so far, and at the most (see `OWED`).
    """

    credit: float = START
    idle: int = -1
    asked: bool = False
    balance: float = 0.0
    highest: float = 0.0

    def copy(self) -> _Request:
        """One of which only who asks is looked up."""
        return _Request(self.credit, self.idle, self.asked)

    def pays(self, share: float) -> float:
        """What it must have for a question that takes so much."""
        return share if self.asked or share <= DEAR else share + START

    def can_pay(self, share: float, *, promising: float, earned: float = 0.0) -> bool:
        """Whether it has that, with what it `earned` meanwhile. Of a `promising` question a part is lent."""
        return self.credit + earned >= max(0.0, self.pays(share) - LENT * promising**CERTAIN)

    def asks(self, cost: float, income: float, now: int, *, promising: float = 0.0) -> bool:
        """Whether it asks in round `now`, if it decodes alone: `_askers` of one."""
        wanted = promising > 0.0 or self.due(now, _every(cost, income))
        return wanted and self.can_pay(cost, promising=promising)

    def due(self, now: int, every: int) -> bool:
        """Whether it is to be asked in round `now` though nothing says so: lately, or every so often."""
        return (self.idle <= PATIENCE or not now % every) and (self.asked or self.idle >= EARLIEST)

    def earn(self, income: float, most: float) -> None:
        """A round begins."""
        self.idle += 1
        self.credit = min(most, self.credit + income)


class Attention:
    """The credit of all requests, and how long it is since their drafts were promising."""

    def __init__(self) -> None:
        self._requests: dict[int, _Request] = {}
        self._round = 0
        self._dear = False
        self._most = MOST
        self._income = Income()
        self._cost = 0.0
        self._together = 0

    def begin(self, request: int) -> None:
        """A request begins; one that was not announced begins with its first `tick`."""
        self._requests.setdefault(request, _Request())

    def tick(self, requests: Sequence[int], cost: float, promising: Mapping[int, float] = NOBODY) -> set[int]:
        """A round begins: the requests whose drafters are asked in it, which costs `cost` plain rounds if it
        is one. `promising`: where a draft is likely to pay (`hints`), so that these may run into debt, with
        what chance its first token comes.
        """
        self._round += 1
        self._together = len(requests)
        states = {request: self._requests.setdefault(request, _Request()) for request in requests}
        for state in states.values():
            state.idle += 1
        self._most, self._cost = _most(cost), cost
        if _free(cost, len(states)):
            return set(requests)
        income = self._income.of(len(states))
        for state in states.values():
            state.credit = min(self._most, state.credit + income)
        asked = _askers(states, cost, income, self._round, promising)
        share = _share(cost, len(asked))
        for request in asked:
            state = states[request]
            state.credit -= state.pays(share)
            state.asked = True
        self._income.spent(len(states), share * len(asked))
        return asked

    def solvent(self, request: int, together: int, rested: int, chance: float = 1.0) -> bool:
        """Whether a request could ask by itself if something was promising with that `chance`, at what a
        question took last, after so many rounds of a rest of so many requests. To find out in vain takes half
        a question.
        """
        state = self._requests.get(request)
        earned = self._income.of(together) * (1 + rested)
        return state is None or state.can_pay(_share(self._cost, 1), promising=chance, earned=earned)

    def rest(self, requests: Sequence[int], cost: float, most: int = LONGEST_REST) -> int:
        """In how many of the next rounds, `most` and `LONGEST_REST` at most, `tick` would ask for none of
        these.
        """
        if _free(cost, len(requests)) or any(it not in self._requests for it in requests):
            return 0
        states = {it: self._requests[it].copy() for it in requests}
        self._most, self._cost = _most(cost), cost
        most, income = min(most, LONGEST_REST), self._income.of(len(requests))
        if len(states) == 1:
            [state] = states.values()
            return self._rest_alone(state, cost, most, income)
        for rounds in range(1, most + 1):
            for state in states.values():
                state.earn(income, self._most)
            if _askers(states, cost, income, self._round + rounds):
                return rounds - 1
        return most

    def _rest_alone(self, state: _Request, cost: float, most: int, income: float) -> int:
        """`rest` of one request, of which `state` is a copy."""
        for rounds in range(1, most + 1):
            state.earn(income, self._most)
            if state.asks(cost, income, self._round + rounds):
                return rounds - 1
        return most

    def rested(self, requests: Sequence[int], rounds: int) -> None:
        """So many rounds of a rest have gone by."""
        self._round += rounds
        income = self._income.of(len(requests))
        for request in requests:
            state = self._requests.get(request)
            if state is not None:
                for _ in range(rounds):  # as `tick` adds it, to the last bit
                    state.earn(income, self._most)

    def saved(self, request: int, rounds: float) -> float:
        """A draft saved the request so many plain rounds, or fewer than none. Returns how much of that asking
        may spend: what is spent so no other draft may lose.
        """
        self._income.saved(self._together, rounds)
        state = self._requests.get(request)
        if state is None:
            return 0.0
        state.balance += rounds
        if state.balance <= state.highest:
            state.highest = min(state.highest, state.balance + OWED)
            return 0.0
        earned = EARNED * (state.balance - state.highest)
        before, state.highest = state.credit, state.balance
        state.credit = min(self._most, before + earned)
        return 0.0 if _free(self._cost, self._together) else state.credit - before

    def note(self, request: int, survival: float, row_cost: float, *, pays: bool = False) -> None:
        """The best draft of this round: its first token survives with this chance (0: there was none), one
        more row costs `row_cost` plain rounds, and whether it `pays` as a whole.
        """
        self._dear = row_cost > 1.0
        if promising(survival, row_cost, pays=pays):
            self._requests.setdefault(request, _Request()).idle = 0

    def wake(self, request: int) -> None:
        """A draft, verified or not, turned out to begin right: whatever was estimated, ask again soon; not
        where it takes more than that to pay.
        """
        state = self._requests.get(request)
        if state is not None and not self._dear:
            state.idle = min(state.idle, PATIENCE - AFTER_A_HIT)

    def forget(self, request: int) -> None:
        """The request is over. What the one that is left alone owes for questions in company is forgotten:
        where the others' rows cost most a draft may pay at last, and its credit would say so too late.
        """
        self._requests.pop(request, None)
        if len(self._requests) == 1:
            for state in self._requests.values():
                state.credit = max(state.credit, 0.0)


def _most(cost: float) -> float:
    """The credit that is saved up at most: any first question can be paid for."""
    return max(MOST, cost + START)


def _share(cost: float, asked: int) -> float:
    """What each of so many requests pays."""
    return cost * times(asked) / asked if asked else 0.0


def _free(cost: float, together: int) -> bool:
    """Whether each of so many requests can pay its share in every round."""
    return _share(cost, together) <= INCOME


def _every(cost: float, income: float) -> int:
    """Every how many rounds who is not promising is asked."""
    return 1 + int(cost / (SAVED * income))


def _askers(
    states: Mapping[int, _Request],
    cost: float,
    income: float,
    now: int,
    promising: Mapping[int, float] = NOBODY,
) -> set[int]:
    """Who asks in round `now`: who is promising, or was lately, and every so often the others; of these all
    who can pay their share.
    """
    if len(states) == 1:
        return {
            it
            for it, state in states.items()
            if state.asks(cost, income, now, promising=promising.get(it, 0.0))
        }
    every = _every(_share(cost, len(states)), income)
    wanted = {it: state for it, state in states.items() if it in promising or state.due(now, every)}
    while wanted:
        share = _share(cost, len(wanted))
        able = {
            it: state
            for it, state in wanted.items()
            if state.can_pay(share, promising=promising.get(it, 0.0))
        }
        if len(able) == len(wanted):
            break
        wanted = able
    return set(wanted)
