"""What rounds took and brought: told to their requests' counters, the planner, and `Decisions`.

Between two forwards the processor's caches hold the model, not this code: what takes 3 µs in a loop takes 30
there. So a round in which nothing can be drafted is only put aside, with the times of four moments. It is
told with others like it before the planner is needed again, a request ends, or somebody looks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter
from typing import NamedTuple

from foretoken.engine.decisions import Decisions, Plan
from foretoken.engine.drafting import Drafters
from foretoken.engine.request import Request
from foretoken.engine.setup import Setup
from foretoken.engine.stats import PlainRound, PlainRounds
from foretoken.types import Draft, Load, Outcome, Round

MOST = 32
"""Rounds that are put aside at most: a median of plain rounds is no older than that."""


class Entry(NamedTuple):
    """A round that is over. Of each request that decoded the draft that was verified, if any, and the
    outcome, None if it cannot go on. `prompt_rows`: rows of prompts beside them. The moments are in seconds
    of the engine's clock.
    """

    load: Load
    plan: Plan
    decoding: Sequence[Request]
    drafts: Sequence[Draft | None]
    outcomes: Sequence[Outcome | None]
    prompt_rows: int
    began: float
    drafted: float
    forwarded: float
    done: float

    @property
    def drafted_rows(self) -> int:
        """Draft tokens that were verified."""
        return sum(len(draft) for draft in self.drafts if draft)


class Ledger:
    """The rounds of one engine. `clock` gives seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._aside: list[tuple[Entry, Setup]] = []
        self._plain_rounds = PlainRounds()
        self._late_ms = 0.0
        self.decisions = Decisions(catch_up=self.settle)

    def add(self, entry: Entry, setup: Setup) -> None:
        """A round is over. What telling it takes, the planner hears with the next that is told at once."""
        if entry.plan.resting and not self.decisions.watched:
            self._aside.append((entry, setup))
            if len(self._aside) >= MOST:
                self.settle()
            return
        self.settle()
        self._tell(entry, setup)
        self._late_ms = 1e3 * (self._clock() - entry.done)

    def settle(self) -> float:
        """Tell what was put aside. Returns the milliseconds it took."""
        if not self._aside:
            return 0.0
        began = self._clock()
        aside, self._aside = self._aside, []
        for entry, setup in aside:
            self._tell(entry, setup)
        return 1e3 * (self._clock() - began)

    def plain_round(self, requests: int) -> PlainRound | None:
        """What plain rounds of so many requests took lately; None before two were seen."""
        self.settle()
        return self._plain_rounds.of(requests)

    def _tell(self, entry: Entry, setup: Setup) -> None:
        outcomes = [
            (request, outcome)
            for request, outcome in zip(entry.decoding, entry.outcomes, strict=True)
            if outcome is not None
        ]
        if not outcomes:
            return
        speculating = bool(setup.drafters)
        if not entry.prompt_rows:
            self._compare(entry, outcomes, entry.drafted - entry.began if speculating else 0.0)
        drafting_ms = sum(entry.plan.draft_ms.values())
        plan_ms = 1e3 * (entry.drafted - entry.began) - drafting_ms - entry.plan.settling_ms
        forward_ms, sample_ms = 1e3 * (entry.forwarded - entry.drafted), 1e3 * (entry.done - entry.forwarded)
        _split(outcomes, drafting_ms, forward_ms, sample_ms, plan_ms + entry.plan.settling_ms)
        if not speculating:
            return
        listening_ms = _tell_drafters(entry, setup.drafters)
        rows = len(entry.decoding) + entry.drafted_rows + entry.prompt_rows
        ended = tuple((request.id, outcome) for request, outcome in outcomes)
        late_ms, self._late_ms = self._late_ms, 0.0
        measured = Round(entry.load, rows, listening_ms, forward_ms, sample_ms, ended, plan_ms, late_ms)
        began = perf_counter()  # the planner's own time, also where the engine's clock is a virtual one
        setup.planner.observe(measured)
        planner_ms = entry.plan.planner_ms + 1e3 * (perf_counter() - began)
        dropped = entry.drafts is not entry.plan.drafts
        self.decisions.note(entry.decoding, entry.plan, measured, planner_ms, dropped=dropped)

    def _compare(self, entry: Entry, outcomes: Sequence[tuple[Request, Outcome]], overhead_s: float) -> None:
        """Note the time of a round without a prompt, as a plain one and for the requests' estimated speedup.
        `overhead_s` of it went before the forward, to look for drafts.
        """
        ms, overhead_ms = 1e3 * (entry.done - entry.began), 1e3 * overhead_s
        plain = not entry.drafted_rows
        if plain:
            self._plain_rounds.add(len(outcomes), ms - overhead_ms)
        usual = self._plain_rounds.of(len(outcomes))
        if usual is None:
            return
        for request, outcome in outcomes:
            if plain:
                request.stats.speedup.plain(ms, overhead_ms, usual)
            else:
                request.stats.speedup.drafted(len(outcome.tokens), ms, usual)


def _tell_drafters(entry: Entry, drafters: Drafters) -> dict[str, float]:
    """Tell them what was committed; returns the milliseconds that asking each took, telling it included."""
    plan = entry.plan
    for place, (request, outcome) in enumerate(zip(entry.decoding, entry.outcomes, strict=True)):
        if outcome is not None:
            drafters.observe(request.view, outcome, plan.asked(place) if plan.limits else ())
    return drafters.with_listening(plan.draft_ms)


def _split(
    outcomes: Sequence[tuple[Request, Outcome]],
    draft_ms: float,
    forward_ms: float,
    sample_ms: float,
    plan_ms: float,
) -> None:
    """Note where the round's time went: the same share for every request that decoded in it."""
    part = 1 / len(outcomes)
    for request, _ in outcomes:
        request.stats.spent(
            draft=part * draft_ms,
            verify=part * forward_ms,
            sample=part * sample_ms,
            other=part * plan_ms,
        )
