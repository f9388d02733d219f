"""What rounds took and brought: told to their requests' counters, the planner, and `Decisions`.

Between two forwards the processor's caches hold the model, not this code: what takes 3 µs in a loop takes 30
there. So a round is only put aside, with the times of four moments, and told together with others: before the
planner is needed again, a request ends, or somebody looks.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from time import perf_counter
from types import MappingProxyType
from typing import NamedTuple

from foredraft.engine.decisions import Decisions, Plan
from foredraft.engine.drafting import Drafters
from foredraft.engine.request import Request
from foredraft.engine.setup import Setup
from foredraft.engine.stats import PlainRound, PlainRounds
from foredraft.types import Draft, Load, Outcome, Round

MOST = 32
"""Rounds that wait to be learnt from, or to be counted, at most."""

_NOBODY: Mapping[str, float] = MappingProxyType({})


class Entry(NamedTuple):
    """A round that is over. Of each request that decoded the draft that was verified, if any, and the
    outcome, None if it cannot go on. `prompt_rows`: rows of prompts beside them. The moments are in seconds
    of the engine's clock. `planner_ms` went into what the planner decided.
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
    planner_ms: float

    @property
    def of_requests(self) -> Sequence[tuple[Request, Outcome]]:
        """The outcomes of all that can go on."""
        both = zip(self.decoding, self.outcomes, strict=True)
        return [(request, outcome) for request, outcome in both if outcome is not None]

    @property
    def before_ms(self) -> float:
        """What went before the forward, drafting included."""
        return 1e3 * (self.drafted - self.began)

    @property
    def forward_ms(self) -> float:
        return 1e3 * (self.forwarded - self.drafted)

    @property
    def sample_ms(self) -> float:
        """What choosing and committing tokens took."""
        return 1e3 * (self.done - self.forwarded)

    @property
    def heavy(self) -> bool:
        """Whether it holds probabilities, which may be megabytes."""
        return any(draft.probs is not None for its in self.plan.candidates for draft in its)

    @property
    def waits(self) -> bool:
        """Whether it is learnt from later, with others."""
        plan = self.plan
        return plan.resting or (plan.aside and not self._began_right)

    @property
    def _began_right(self) -> bool:
        """Whether a candidate's first token was right, or may have been."""
        return any(
            outcome is not None and (draft.parents is not None or draft.tokens[0] == outcome.tokens[0])
            for its, outcome in zip(self.plan.candidates, self.outcomes, strict=False)
            for draft in its
        )

    @property
    def drafted_rows(self) -> int:
        """Draft tokens that were verified."""
        return sum(len(draft) for draft in self.drafts if draft)


class _Learnt(NamedTuple):
    """A round as the planner was told of it, which took `planner_ms`. `measured` is None without drafters."""

    entry: Entry
    outcomes: Sequence[tuple[Request, Outcome]]
    measured: Round | None
    planner_ms: float


class Ledger:
    """The rounds of one engine. `clock` gives seconds.

    The planner and the drafters hear of a round at once if it says when to ask again, and otherwise before
    anybody is asked (`learn`). Counters and decisions are for people, and wait longer (`settle`).
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._unlearnt: deque[tuple[Entry, Setup]] = deque()
        self._unrecorded: deque[_Learnt] = deque()
        self._plain_rounds = PlainRounds()
        self._late_ms = 0.0
        self.decisions = Decisions(catch_up=self.settle)

    def add(self, entry: Entry, setup: Setup) -> None:
        """A round is over. What learning from it takes, the planner hears with the next."""
        self._unlearnt.append((entry, setup))
        if not entry.waits:
            self.learn()
            if any(entry.outcomes):
                self._late_ms = 1e3 * (self._clock() - entry.done)
        if self.decisions.watched:
            self.settle()
        elif len(self._unlearnt) >= MOST:
            self.learn()
        if len(self._unrecorded) >= MOST or entry.heavy:
            self._record_all()

    def learn(self) -> float:
        """Tell the planner and the drafters what they were not told. Returns the milliseconds it took. If it
        is interrupted, one round is lost to them.
        """
        if not self._unlearnt:
            return 0.0
        began = self._clock()
        while self._unlearnt:
            entry, setup = self._unlearnt.popleft()
            outcomes = entry.of_requests
            if outcomes:
                self._unrecorded.append(self._learn(entry, outcomes, setup))
        return 1e3 * (self._clock() - began)

    def settle(self) -> None:
        """Tell everybody what they were not told."""
        self.learn()
        self._record_all()

    def _record_all(self) -> None:
        while self._unrecorded:
            self._record(self._unrecorded.popleft())

    def plain_round(self, requests: int) -> PlainRound | None:
        """What plain rounds of so many requests took lately; None before two were seen."""
        self.settle()
        return self._plain_rounds.of(requests)

    def _learn(self, entry: Entry, outcomes: Sequence[tuple[Request, Outcome]], setup: Setup) -> _Learnt:
        plan = entry.plan
        if not setup.drafters:
            return _Learnt(entry, outcomes, None, 0.0)
        late_ms, self._late_ms = self._late_ms, 0.0
        listening_ms = _tell_drafters(entry, outcomes, setup.drafters)
        measured = Round(
            load=entry.load,
            rows=len(entry.decoding) + entry.drafted_rows + entry.prompt_rows,
            draft_ms=listening_ms,
            forward_ms=entry.forward_ms,
            sample_ms=entry.sample_ms,
            outcomes=tuple([(request.id, outcome) for request, outcome in outcomes]),
            plan_ms=entry.before_ms - sum(plan.draft_ms.values()) - plan.learning_ms,
            late_ms=late_ms,
        )
        began = perf_counter()  # the planner's own time, also where the engine's clock is a virtual one
        setup.planner.observe(measured)
        planner_ms = entry.planner_ms + 1e3 * (perf_counter() - began)
        return _Learnt(entry, outcomes, measured, planner_ms)

    def _record(self, learnt: _Learnt) -> None:
        entry, outcomes, measured = learnt.entry, learnt.outcomes, learnt.measured
        drafting_ms = sum(entry.plan.draft_ms.values())
        # What drafters took to hear of what they learn from comes after the round, and belongs to it.
        listening_ms = 0.0 if measured is None else sum(measured.draft_ms.values()) - drafting_ms
        if not entry.prompt_rows:
            overhead_ms = 0.0 if measured is None else entry.before_ms + listening_ms
            self._compare(entry, outcomes, listening_ms, overhead_ms)
        part = 1 / len(outcomes)  # where the time went: the same share for all that decoded
        for request, _ in outcomes:
            request.stats.spent(
                draft=part * (drafting_ms + listening_ms),
                verify=part * entry.forward_ms,
                sample=part * entry.sample_ms,
                other=part * (entry.before_ms - drafting_ms),
            )
        if measured is not None:
            dropped = entry.drafts is not entry.plan.drafts
            self.decisions.note(entry.decoding, entry.plan, measured, learnt.planner_ms, dropped=dropped)

    def _compare(
        self,
        entry: Entry,
        outcomes: Sequence[tuple[Request, Outcome]],
        listening_ms: float,
        overhead_ms: float,
    ) -> None:
        """Note the time of a round without a prompt, as a plain one and for the requests' estimated speedup.
        `overhead_ms` of it went to look for drafts.
        """
        ms, plain = 1e3 * (entry.done - entry.began) + listening_ms, not entry.drafted_rows
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


def _tell_drafters(
    entry: Entry, outcomes: Sequence[tuple[Request, Outcome]], drafters: Drafters
) -> Mapping[str, float]:
    """Tell them what was committed; returns the milliseconds that asking each took, telling it included."""
    plan = entry.plan
    if not plan.limits:
        for request, outcome in outcomes:
            drafters.observe(request.view, outcome, ())
        return _NOBODY
    for place, (request, result) in enumerate(zip(entry.decoding, entry.outcomes, strict=True)):
        if result is not None:
            drafters.observe(request.view, result, plan.asked(place))
    return drafters.with_listening(plan.draft_ms)
