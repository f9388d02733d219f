"""Who is asked to draft: everyone who is free, others where they pay (`worth`, `catchup`), and as probes.

A costly drafter that does not seem to pay is still tried now and then, within a small share of the time, so
that it is found out when that changes. A probe is a few rounds running: the first one may be all reading.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from foredraft.planner.attention import EARNED, times
from foredraft.planner.catchup import Answers, CatchUp
from foredraft.planner.cost import CostCurve
from foredraft.planner.income import INCOME
from foredraft.planner.tables.reading import NEGLIGIBLE
from foredraft.planner.worth import FREE, LONGEST, DrafterWorth
from foredraft.protocols import RequestView
from foredraft.types import DraftLimit, Load, Round

PROBE_BUDGET = 0.01
"""Share of the time that may go into trying drafters that do not seem to pay."""

FIRST_PROBE = 4
"""Tokens of the first draft, when nothing is known of a drafter. A probe that was wrong is followed by one of
a single token, because of a draft that is not verified only the first is scored; one that was right by one
twice as long.
"""

SLACK = 0.8
"""A drafter's own estimate may be this much too low without being held against it: later tokens of a chain
are more certain than the first, and calibration may find that the drafter is too modest."""

MODEST = 0.5
"""The same for the survival of a later token, whose estimates are products."""

DOUBTED = 0.7
PROBE_ROUNDS = 6


LENT = 0.3
"""Plain rounds that a drafter may owe, asked for requests for which a draft is likely to pay: the first copy
of a process comes before anything was earned."""

SURE = 0.95
"""A drafter that is right with this chance or better, and takes no more than `INCOME`, is asked in every
round of a request that it drafted for before: tokens that a grammar forces come after long stretches of free
text, in which no draft keeps the request awake."""

KEPT = 0.999
"""Per round, of a drafter's credit: the last thousand rounds count."""

SAVED = 8.0
"""Plain rounds of credit at most: text that changes must not be paid for by text long past."""

FORGET = 0.9999
"""Per round, of the time that was spent: a budget is not saved up for days."""

Limits = list[DraftLimit | None]


@dataclass(slots=True)
class _Asked:
    """What is kept of one drafter. `now`: for whom it is asked in this round, as (request id, length of
    its history, whether it is behind). `credit`, in turns (`CostCurve.turn`): what it earned less what
    asking it took.
    """

    worth: DrafterWorth = field(default_factory=DrafterWorth)
    reading: CatchUp = field(default_factory=CatchUp)
    probes: int = 0
    probing: bool = False
    credit: float = 0.0
    probe_tokens: int = FIRST_PROBE
    now: list[tuple[int, int, bool]] = field(default_factory=list)
    helped: set[int] = field(default_factory=set)

    def sure(self, request: int) -> bool:
        """Whether it is asked for this request even while that is not awake."""
        return request in self.helped and self.certain

    @property
    def certain(self) -> bool:
        """Whether it costs hardly anything and is nearly always right."""
        return self.worth.asking <= INCOME and self.worth.chance >= SURE

    @property
    def affordable(self) -> bool:
        """Of a drafter that is free: whether it costs hardly anything, or has earned what it takes."""
        return self.worth.asking <= INCOME or self.credit >= 0.0


class Asking:
    """The limits of all drafters."""

    def __init__(self, curve: CostCurve, margin: float) -> None:
        self._curve = curve
        self._margin = margin
        self._drafters: dict[str, _Asked] = {}
        self._recalled: dict[str, float] = {}
        self._answers = Answers()
        self._total_ms = 0.0
        self._probe_ms = 0.0
        self._limit: DraftLimit | None = None
        """Of free drafters in this round, once it was needed."""

    def recall(self, asking: Mapping[str, float]) -> None:
        """Begin with what asking each of the drafters that cost next to nothing took in an earlier run, in
        plain rounds.
        """
        self._recalled.update(asking)

    def _known(self, name: str) -> _Asked | None:
        """What is kept of a drafter, if it was asked before, in an earlier run if not in this one."""
        drafter = self._drafters.get(name)
        if drafter is None and name in self._recalled:
            drafter = self._drafters[name] = _Asked()
            drafter.worth.recall(self._recalled[name])
        return drafter

    def cost(self, drafters: Sequence[str]) -> float:
        """What it takes, in V(1), to ask those of these that are free and would be asked, for one request."""
        total = 0.0
        for name in drafters:
            drafter = self._known(name)
            if drafter is not None and drafter.worth.free and drafter.affordable:
                total += drafter.worth.asking
        return total

    @property
    def free_ms(self) -> dict[str, float]:
        """What asking each free drafter for one request takes, in milliseconds, as far as it is known."""
        if not self._curve.known:
            return {}
        return {
            name: drafter.worth.asking * self._curve.single_ms
            for name, drafter in self._drafters.items()
            if drafter.worth.free
        }

    def asleep(self, drafters: Sequence[str]) -> bool:
        """Whether all drafters cost next to nothing, so that none is asked while no request is awake."""
        if not all(name in self._drafters and self._drafters[name].worth.free for name in drafters):
            return False
        asked = [self._drafters[name] for name in drafters]
        return not any(drafter.helped and drafter.certain for drafter in asked)

    def nobody(self) -> None:
        """No drafter is asked in this round."""
        for drafter in self._drafters.values():
            drafter.now = []

    def limits(
        self,
        requests: Sequence[RequestView],
        drafters: Sequence[str],
        load: Load,
        awake: Container[int],
        promising: Container[int] = (),
    ) -> dict[str, Limits]:
        """For each drafter and request how far it may draft in this round; drafters that cost next to
        nothing only for the requests that are `awake`, and on credit for those that are `promising`.
        """
        limits: dict[str, Limits] = {}
        self._limit = None
        for name in drafters:
            drafter = self._known(name)
            if drafter is None:
                drafter = self._drafters[name] = _Asked()
            limits[name] = self._limits(drafter, requests, load, awake, promising)
            drafter.now = [
                (request.id, len(request.tokens), drafter.reading.behind(request))
                for request, limit in zip(requests, limits[name], strict=True)
                if limit is not None
            ]
        if len(drafters) < len(self._drafters):
            for name, drafter in self._drafters.items():
                if name not in limits:
                    drafter.now, drafter.probing = [], False
        return limits

    def _limits(
        self,
        drafter: _Asked,
        requests: Sequence[RequestView],
        load: Load,
        awake: Container[int],
        promising: Container[int],
    ) -> Limits:
        drafter.probing = False
        if drafter.worth.free:
            if not drafter.affordable:
                if drafter.credit < -LENT:
                    return [None] * len(requests)
                awake = [
                    request.id for request in requests if request.id in promising and request.id in awake
                ]
            if self._limit is None:
                self._limit = self._least(load.decoding)
            limit = self._limit
            return [
                limit if request.id in awake or drafter.sure(request.id) else None for request in requests
            ]
        if drafter.worth.measured:
            price = partial(self._curve.even, load.decoding)
            offer = drafter.worth.offer(
                price, decoding=load.decoding, margin=self._margin, resize=self._curve.resize
            )
            if offer is not None:
                drafter.probes, drafter.probe_tokens = 0, 1
                saved = 1.0 - 1.0 / offer.rate  # of a plain round, with every token
                return [
                    offer.limit
                    if drafter.reading.cost(request, drafter.worth.token_cost)
                    <= saved * self._answers.remaining(request)
                    or not drafter.reading.behind(request)
                    else None
                    for request in requests
                ]
        return self._probe(drafter, requests)

    def _least(self, decoding: int) -> DraftLimit:
        """What is hopeless needs no draft. In company a token is worth what it takes each of the requests in
        a plain round; which lengths pay depends on the others' drafts, but no token pays that is worth less
        than a row's price.
        """
        worth = self._curve.ratio(decoding) / decoding
        survival = self._curve.row_price() / worth
        chance = self._curve.break_even(self._margin) if decoding == 1 else survival
        return DraftLimit(LONGEST, MODEST * survival, SLACK * chance)

    def _probe(self, drafter: _Asked, requests: Sequence[RequestView]) -> Limits:
        """Try it for the one request that costs least to read."""
        limits: Limits = [None] * len(requests)
        costs = [drafter.reading.cost(request, drafter.worth.token_cost) for request in requests]
        if not costs:
            return limits
        cheapest = costs.index(min(costs))
        if drafter.worth.measured and not self._affordable(costs[cheapest], started=drafter.probes > 0):
            drafter.probes = 0
            return limits
        drafter.probes = (drafter.probes + 1) % PROBE_ROUNDS
        drafter.probing = True
        limits[cheapest] = DraftLimit(drafter.probe_tokens)
        return limits

    def _affordable(self, reading: float, *, started: bool) -> bool:
        """Whether the budget allows a probe that begins with `reading` plain rounds, or to go on with one.

        It may be overdrawn once: within one request what is unread can grow as fast as the budget.
        """
        budget_ms = PROBE_BUDGET * self._total_ms
        if self._probe_ms > budget_ms and not started:
            return False
        return self._probe_ms + reading * self._curve.single_ms <= 2 * budget_ms

    def earned(self, name: str, rounds: float) -> None:
        """A draft of this drafter saved so many turns."""
        drafter = self._drafters.get(name)
        if drafter is not None and rounds > 0:
            drafter.credit += EARNED * rounds

    def scored(self, name: str, right: int, wrong: int) -> None:
        """Of a drafter's proposals so many were right and wrong."""
        drafter = self._drafters.get(name)
        if drafter is None:
            return
        drafter.worth.scored(right, wrong)
        if drafter.probing:
            longer = min(2 * drafter.probe_tokens, FIRST_PROBE)
            # Where it is known to be right, what is in doubt is its cost, and one token shows that.
            drafter.probe_tokens = 1 if wrong or drafter.worth.chance > DOUBTED else longer

    def passed(self, ms: float, requests: int) -> None:
        """A round of so many requests is over, which took so many milliseconds."""
        self._probe_ms *= FORGET
        self._total_ms = FORGET * self._total_ms + ms
        earned = INCOME * requests
        for asked in self._drafters.values():
            asked.credit = min(KEPT * asked.credit + earned, SAVED)

    def observe(self, measured: Round, drafted: Mapping[str, int]) -> None:
        """A round is over, in which each drafter proposed `drafted[name]` tokens in all."""
        spent = measured.forward_ms + measured.sample_ms + sum(measured.draft_ms.values())
        self.passed(spent, len(measured.outcomes))
        for request, outcome in measured.outcomes:
            if outcome.accepted and outcome.draft is not None and outcome.draft.source in self._drafters:
                self._drafters[outcome.draft.source].helped.add(request)
        if not measured.draft_ms or not self._curve.known:
            return
        if measured.load.prefill_rows or measured.load.owed:
            single = self._curve.single_ms
        else:  # forward and drafts of one round suffer the same stall: their ratio does not
            lengths = [len(outcome.draft) for _, outcome in measured.outcomes if outcome.draft]
            single = measured.forward_ms / self._curve.took(measured.rows, lengths)
        for name, ms in measured.draft_ms.items():
            drafter = self._drafters.get(name)
            if drafter is None:
                continue
            if drafter.probing:
                self._probe_ms += ms + self._verified_ms(measured, name)
            turn = self._curve.turn(max(len(measured.outcomes), 1))
            self._measured(drafter, ms / max(single, 1e-9), drafted.get(name, 0), turn)

    def _measured(self, drafter: _Asked, cost: float, tokens: int, turn: float) -> None:
        chunks = 0
        for request, length, behind in drafter.now:
            read = drafter.reading.asked(request, length)
            chunks += read if behind else 0
        if chunks and cost > FREE:
            drafter.reading.took(cost, tokens, chunks)
        else:
            # A probe of one token says what one costs, and nothing of drafts as long as it likes.
            short = FIRST_PROBE / tokens if drafter.probing and 0 < tokens < FIRST_PROBE else 1.0
            drafter.worth.drafted(cost, tokens, asked=cost * short / times(max(len(drafter.now), 1)))
            if drafter.worth.free:
                drafter.credit -= cost / turn

    def _verified_ms(self, measured: Round, name: str) -> float:
        """What a probe's sampled draft costs beside a plain round; others are verified only where it pays."""
        rows = sum(
            len(outcome.draft)
            for _, outcome in measured.outcomes
            if outcome.draft is not None and outcome.draft.source == name and outcome.draft.probs is not None
        )
        return (self._curve.ratio(1 + rows) - 1.0) * self._curve.single_ms

    @property
    def hopeless(self) -> float:
        """Survival under which no token of this round's drafts is worth its row."""
        return NEGLIGIBLE if self._limit is None else max(NEGLIGIBLE, self._limit.min_survival)

    @property
    def asked(self) -> bool:
        """Whether any drafter is asked in this round."""
        return any(drafter.now for drafter in self._drafters.values())

    @property
    def holding_back(self) -> bool:
        """Whether no drafter is asked, and one because it is not expected to pay for its own time."""
        return not self.asked and any(not drafter.worth.free for drafter in self._drafters.values())

    def stop(self, request: RequestView) -> None:
        self._answers.ended(request)
        for drafter in self._drafters.values():
            drafter.reading.forget(request.id)
            drafter.helped.discard(request.id)
