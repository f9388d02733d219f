"""A round: propose → forward → commit → remember."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from time import perf_counter
from typing import NamedTuple

from foredraft.engine.commit import accept, finish_prefill
from foredraft.engine.decisions import Decisions, Plan
from foredraft.engine.request import Request
from foredraft.engine.scheduler import Scheduler
from foredraft.engine.speculation import Setup
from foredraft.engine.stats import PlainRounds
from foredraft.errors import ForedraftError, HostLostError, OutOfKVError
from foredraft.images import spans_within
from foredraft.protocols import Model
from foredraft.types import (
    Choice,
    Draft,
    DraftLimit,
    Event,
    Load,
    Logits,
    Outcome,
    Reason,
    Round,
    Rows,
    Verdict,
)

MAX_RECOMPUTED = 16
"""Rows of a request to be computed again (`Model.to_recompute`) above which nothing is drafted for it.
Rejections add to them, and have them computed once more each; a plain round ends that (docs/exactness.md).
"""

Prefill = Sequence[tuple[Request, int]]


class RoundRunner:
    """Runs rounds over the scheduler's requests. Requests that end are left marked with `finish`, one that
    cannot go on also with `error`; the others go on. `setup` may be replaced between rounds. `clock` gives
    seconds. `lost`: the model lost a machine, and cannot compute any more.
    """

    def __init__(
        self, model: Model, scheduler: Scheduler, setup: Setup, clock: Callable[[], float] = perf_counter
    ) -> None:
        self._model = model
        self._scheduler = scheduler
        self.setup = setup
        self.decisions = Decisions()
        self.plain_rounds = PlainRounds()
        self._clock = clock
        self._late_ms = 0.0
        self.lost = False

    def run(self) -> list[Event]:
        """One target forward. A failure of it other than a full KV cache ends the requests that it was for.

        Raises OutOfKVError when the KV cache has no room for it, with every request's state as before.
        """
        began = self._clock()
        decoding = self._scheduler.decoding()
        load = self._scheduler.load(decoding)
        plan = self._propose(decoding, load)
        rows = len(decoding) + sum(len(draft) for draft in plan.drafts if draft)
        prefill = self._scheduler.prefilling(
            self._model.capabilities.max_batch - rows, decoding=bool(decoding)
        )
        proposed = self._clock()
        computed = self._forward(decoding, plan.drafts, prefill)
        if computed is None:
            return []
        logits, drafts = computed
        forwarded = self._clock()
        load = replace(load, idle_threads=self._model.idle_threads)  # the forward may have changed it
        absorbed = bool(self._model.capabilities.features) and self.setup.drafters.absorbing
        events, outcomes, used = self._commit(decoding, drafts, logits, absorbed=absorbed)
        if prefill:
            if absorbed:
                self._absorb_prompts(prefill, used)
            events += finish_prefill(prefill, logits[used:], self.setup.drafters, self._model)
        prompt_rows = sum(count for _, count in prefill)
        self._remember(
            _Done(decoding, load, plan, drafts, outcomes, prompt_rows),
            before_ms=1e3 * (proposed - began),
            forward_ms=1e3 * (forwarded - proposed),
            sample_ms=1e3 * (self._clock() - forwarded),
        )
        return events

    def _propose(self, decoding: Sequence[Request], load: Load) -> Plan:
        """What to verify for each request."""
        drafters, planner = self.setup.drafters, self.setup.planner
        if not drafters or not decoding:
            return Plan([Choice(None)] * len(decoding), planned=False)
        views = [request.view for request in decoding]
        rooms = self._rooms(decoding, load)
        able = [view for view, room in zip(views, rooms, strict=True) if room > 0]
        if not able:
            return Plan(_switched_off(decoding, [Choice(None, Reason.NO_ROOM)] * len(views)))
        limits = {name: _within(row, rooms) for name, row in planner.limits(able, load).items()}
        candidates, draft_ms = drafters.draft(decoding, limits)
        found = [its for its, room in zip(candidates, rooms, strict=True) if room > 0]
        further = planner.further(able, found, load)
        if further:
            more_limits = {name: _within(row, rooms) for name, row in further.items()}
            more, more_ms = drafters.draft(decoding, more_limits)
            limits, draft_ms = limits | more_limits, draft_ms | more_ms
            candidates = [[*first, *then] for first, then in zip(candidates, more, strict=True)]
        choices = _switched_off(decoding, planner.choose(views, candidates, load))
        return Plan(choices, limits, candidates, draft_ms)

    def _rooms(self, decoding: Sequence[Request], load: Load) -> list[int]:
        """The most draft tokens that each request and the forward have room for."""
        rows = self._model.capabilities.max_rows - 1
        most = self._model.capabilities.max_batch
        # Drafts must not starve the prompts that wait.
        reserved = min(load.prefill_rows, max(most // 2, self._scheduler.least_rows))
        spare = max(0, most - reserved - len(decoding)) // len(decoding)
        return [
            0 if self._model.to_recompute(request.seq) > MAX_RECOMPUTED else min(request.room, rows, spare)
            for request in decoding
        ]

    def _forward(
        self, decoding: Sequence[Request], drafts: Sequence[Draft | None], prefill: Prefill
    ) -> tuple[Logits, Sequence[Draft | None]] | None:
        """(logits, the drafts that were verified). Out of KV, prefixes kept from other requests go first, and
        then the drafts. None if it failed for another reason: its requests then end with an error.
        """
        self.setup.drafters.forward_begins()
        while True:
            try:
                return self._model.forward(_batch(decoding, drafts, prefill)), drafts
            except OutOfKVError:
                if self._scheduler.cache.evict():
                    continue
                if not any(drafts):
                    raise
                drafts = [None] * len(decoding)
            except ForedraftError as error:
                self.lost |= isinstance(error, HostLostError)
                for request in (*decoding, *(request for request, _ in prefill)):
                    request.fail(str(error))
                return None

    def _commit(
        self,
        decoding: Sequence[Request],
        drafts: Sequence[Draft | None],
        logits: Logits,
        *,
        absorbed: bool,
    ) -> tuple[list[Event], list[Outcome | None], int]:
        """The events, the outcome of each request (None if it cannot go on), and the rows that were used.
        `absorbed`: a drafter absorbs the features of those that are kept.
        """
        events: list[Event] = []
        outcomes: list[Outcome | None] = []
        first = 0
        for request, draft in zip(decoding, drafts, strict=True):
            end = first + 1 + (len(draft) if draft else 0)
            kept, computed = len(request.view.tokens), request.computed
            verdict = accept(request, draft, logits[first:end], events, self._model)
            if verdict is not None and absorbed:
                rows = range(first, first + 1) if draft is None else _kept_rows(first, draft, verdict)
                self.setup.drafters.absorb(request.view, computed, rows, self._model.features)
            first = end
            if verdict is None:
                outcomes.append(None)
                continue
            committed = tuple(request.view.tokens[kept:])
            accepted = min(verdict.accepted, len(committed))
            request.stats.round(draft, accepted, len(committed))
            outcomes.append(Outcome(kept, committed, draft, accepted))
        return events, outcomes, first

    def _absorb_prompts(self, prefill: Prefill, first: int) -> None:
        """Pass on the features of the rows of prompts, which begin at row `first` of the forward."""
        for request, count in prefill:
            view, rows = request.view, range(first, first + count)
            self.setup.drafters.absorb(
                view, request.computed, rows, self._model.features, end=len(view.tokens)
            )
            first += count

    def _remember(self, done: _Done, *, before_ms: float, forward_ms: float, sample_ms: float) -> None:
        """Let drafters, planner, counters and `decisions` learn from a round: the milliseconds are those
        before, in and after its forward.
        """
        began, plan = self._clock(), done.plan
        rows = len(done.decoding) + sum(len(draft) for draft in done.drafts if draft)
        if done.prompt_rows and rows:
            share = done.prompt_rows / (done.prompt_rows + rows)
            self._scheduler.prompt_rows.learn(done.prompt_rows, share * forward_ms)
        both = done.of_requests
        if not both:
            return
        measured = Round(
            load=done.load,
            rows=rows + done.prompt_rows,
            draft_ms=plan.draft_ms,
            forward_ms=forward_ms,
            sample_ms=sample_ms,
            outcomes=tuple([(request.id, outcome) for request, outcome in both]),
            plan_ms=before_ms - sum(plan.draft_ms.values()),
            late_ms=self._late_ms,
        )
        for request, _ in both:
            request.stats.spent(measured, 1 / len(both))
        if not done.prompt_rows:
            self.plain_rounds.compare(measured, [request.stats.speedup for request, _ in both])
        if plan.planned:
            for request, outcome in both:
                self.setup.drafters.observe(request.view, outcome)
            self.setup.planner.observe([measured])
            self.decisions.add([request.id for request in done.decoding], plan, done.drafts, measured)
        self._late_ms = 1e3 * (self._clock() - began)


def _kept_rows(first: int, draft: Draft, verdict: Verdict) -> Sequence[int]:
    """The rows that were kept of a draft's and of that before it, which is row `first` of the forward."""
    if draft.parents is None:
        return range(first, first + 1 + len(verdict.path))
    return [first, *(first + 1 + node for node in verdict.path)]


class _Done(NamedTuple):
    """A round that is over: of each request that decoded the draft that was verified, if any, and the
    outcome, None if it cannot go on. `prompt_rows`: rows of prompts beside them.
    """

    decoding: Sequence[Request]
    load: Load
    plan: Plan
    drafts: Sequence[Draft | None]
    outcomes: Sequence[Outcome | None]
    prompt_rows: int

    @property
    def of_requests(self) -> list[tuple[Request, Outcome]]:
        """The requests that can go on, and their outcomes."""
        both = zip(self.decoding, self.outcomes, strict=True)
        return [(request, outcome) for request, outcome in both if outcome is not None]


def _switched_off(decoding: Sequence[Request], choices: Sequence[Choice]) -> list[Choice]:
    """The choices, with that reason for requests that want no drafts."""
    off = Choice(None, Reason.SWITCHED_OFF)
    return [choice if request.max_draft else off for request, choice in zip(decoding, choices, strict=True)]


def _within(row: Sequence[DraftLimit | None], rooms: Sequence[int]) -> list[DraftLimit | None]:
    """The limits of the requests with room, in their places among all, and within that room."""
    limits, found = iter(row), list[DraftLimit | None]()
    for room in rooms:
        limit = next(limits) if room > 0 else DraftLimit(0)
        found.append(limit and limit.within(room))
    return found


def _batch(decoding: Sequence[Request], drafts: Sequence[Draft | None], prefill: Prefill) -> list[Rows]:
    batch: list[Rows] = []
    for request, draft in zip(decoding, drafts, strict=True):
        last = request.view.tokens[-1]
        if draft is None:
            batch.append(Rows(request.seq, request.computed, (last,), 1))
            continue
        parents = None if draft.parents is None else (-1, *(parent + 1 for parent in draft.parents))
        tokens = (last, *draft.tokens)
        batch.append(Rows(request.seq, request.computed, tokens, len(tokens), parents))
    for request, count in prefill:
        first = request.computed
        tokens = tuple(request.view.tokens[first : first + count])
        images = spans_within(request.view.images, first, first + count)
        batch.append(Rows(request.seq, first, tokens, request.wanted(count), images=images))
    return batch
