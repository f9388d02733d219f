"""A round: plan → draft → forward → verify → commit; `ledger` observes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter

from foredraft.engine.decisions import Limits, Plan, plain
from foredraft.engine.ledger import Entry, Ledger
from foredraft.engine.request import Request
from foredraft.engine.scheduler import Scheduler
from foredraft.engine.scoring import PromptEvent
from foredraft.engine.setup import Setup
from foredraft.engine.verify import verify
from foredraft.errors import ForedraftError, NoNextTokenError, OutOfKVError
from foredraft.protocols import Model
from foredraft.sampling.successors import verified_successors
from foredraft.types import (
    TARGET,
    Draft,
    Event,
    FinishReason,
    Load,
    Logits,
    Outcome,
    Rows,
    TokenEvent,
    Verdict,
)

MOST_OWED = 16
"""Rows of a request to be computed again (`Model.owed`) above which nothing is drafted for it. Rejections add
to them, and have them computed once more each; a plain round ends that (docs/exactness.md).
"""


class RoundRunner:
    """Runs rounds over the scheduler's requests. Requests that end are left marked with `finish`, one that
    cannot go on also with `error`; the others go on. `setup` may be replaced between rounds. `clock` gives
    seconds.
    """

    def __init__(
        self, model: Model, scheduler: Scheduler, setup: Setup, clock: Callable[[], float] = perf_counter
    ) -> None:
        self._model = model
        self._scheduler = scheduler
        self.setup = setup
        self._clock = clock
        self.ledger = Ledger(clock)
        self._planner_ms = 0.0  # of the round that begins

    def run(self) -> list[Event]:
        """One target forward. Another failure of it ends the requests that it was for.

        Raises OutOfKVError when the KV cache has no room for it, with every request's state as before.
        """
        began = self._clock()
        decoding = self._scheduler.decoding()
        load = self._scheduler.load(decoding)
        plan = self._plan_and_draft(decoding, load)
        drafts = plan.drafts
        room = self._model.capabilities.max_batch - _verified(decoding, drafts)
        prefill = self._scheduler.prefilling(room, decoding=bool(decoding))

        drafted = self._clock()
        computed = self._forward(decoding, drafts, prefill)
        if computed is None:
            return []
        logits, drafts = computed
        forwarded = self._clock()
        events, outcomes = self._commit(decoding, drafts, plan, logits)
        if prefill:
            events += self._finish_prefill(prefill, logits[_verified(decoding, drafts) :])
        prompt_rows = sum(count for _, count in prefill) if prefill else 0
        if prompt_rows and decoding:
            share = prompt_rows / (prompt_rows + _verified(decoding, drafts))
            self._scheduler.prompt_rows.learn(prompt_rows, share * 1e3 * (forwarded - drafted))
        moments = began, drafted, forwarded, self._clock()
        entry = Entry(load, plan, decoding, drafts, outcomes, prompt_rows, *moments, self._planner_ms)
        self.ledger.add(entry, self.setup)
        return events

    def _forward(
        self,
        decoding: Sequence[Request],
        drafts: Sequence[Draft | None],
        prefill: Sequence[tuple[Request, int]],
    ) -> tuple[Logits, Sequence[Draft | None]] | None:
        """(logits, the drafts that were verified). Out of KV, prefixes kept from other requests go first, and
        then the drafts. None if it failed for another reason: its requests then end with an error.
        """
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
                for request in (*decoding, *(request for request, _ in prefill)):
                    request.fail(str(error))
                return None

    def _plan_and_draft(self, decoding: list[Request], load: Load) -> Plan:
        """What to verify for each request."""
        drafters, planner, learner = self.setup.drafters, self.setup.planner, self.setup.learner
        self._planner_ms = 0.0
        if not drafters or not decoding:
            return plain(len(decoding), resting=not drafters)
        if drafters.toll is not None:
            drafters.toll.began()
        views = [request.view for request in decoding]
        began = perf_counter()  # the planner's own time, also where the engine's clock is a virtual one
        resting = planner.rests(views, load)
        self._planner_ms = 1e3 * (perf_counter() - began)
        if resting:
            return plain(len(decoding), resting=True)
        nothing: list[Draft | None] = [None] * len(decoding)
        learning_ms = self.ledger.learn()
        began = perf_counter()
        wished = planner.limits(views, drafters.serving(views), load)
        self._planner_ms += 1e3 * (perf_counter() - began)
        if not wished:
            measuring = learner is not None and learner.measuring
            return plain(len(decoding), resting=True)._replace(learning_ms=learning_ms, measuring=measuring)
        limits = self._fitting(wished, decoding, load)
        wanted = drafters.successors_wanted(limits, len(decoding))
        candidates, spent = drafters.draft(decoding, limits)
        began = perf_counter()
        found = any(candidates)
        drafts = planner.choose(views, candidates, load) if found else nothing
        aside = not any(drafts) and not any(wanted) and planner.rests_next(views, load)
        self._planner_ms += 1e3 * (perf_counter() - began)
        estimates = learner.estimates if found and learner is not None else ()
        return Plan(
            drafts,
            spent,
            wanted,
            limits,
            candidates if found else (),
            estimates,
            learning_ms,
            aside=aside,
        )

    def _fitting(self, wished: Limits, decoding: Sequence[Request], load: Load) -> Limits:
        """The planner's limits, within what each request and the forward have room for."""
        rows = self._model.capabilities.max_rows - 1
        most = self._model.capabilities.max_batch
        reserved = min(load.prefill_rows, most // 2)  # drafts must not starve the prompts that wait
        spare = max(0, most - reserved - len(decoding)) // len(decoding)
        room = [
            0 if self._model.owed(request.seq) > MOST_OWED else min(request.room, rows, spare)
            for request in decoding
        ]
        return {
            name: [limit and limit.within(most) for limit, most in zip(limits, room, strict=True)]
            for name, limits in wished.items()
        }

    def _commit(
        self,
        decoding: list[Request],
        drafts: Sequence[Draft | None],
        plan: Plan,
        logits: Logits,
    ) -> tuple[list[Event], list[Outcome | None]]:
        """The events, and of each request what became of it; None if it cannot go on."""
        events: list[Event] = []
        outcomes: list[Outcome | None] = []
        first = 0
        for request, draft, most in zip(decoding, drafts, plan.wanted, strict=True):
            end = first + 1 + (len(draft) if draft else 0)
            rows, first = logits[first:end], end
            kept = len(request.view.tokens)
            verdict = self._accept(request, draft, rows, events)
            if verdict is None:
                outcomes.append(None)
                continue
            committed = tuple(request.view.tokens[kept:])
            accepted = min(verdict.accepted, len(committed))
            request.stats.round(draft, accepted, len(committed))
            last = request.view.tokens[kept - 1]
            successors = verified_successors(last, draft, rows, most) if most else ()
            outcomes.append(Outcome(kept, committed, draft, accepted, successors))
        return events, outcomes

    def _accept(
        self, request: Request, draft: Draft | None, rows: Logits, events: list[Event]
    ) -> Verdict | None:
        """Verify, commit and roll back, adding to `events`. None if this request cannot go on: it ends with
        what it has where its constraint leaves no token, and with an error else; the others do not feel it.
        """
        try:
            verdict = verify(request, draft, rows)
            events += accept_tokens(request, draft, verdict, rows)
            self._roll_back(request, draft, verdict)
        except ForedraftError as error:
            if isinstance(error, NoNextTokenError) and request.params.constraint is not None:
                request.end_early(str(error))
            else:
                request.fail(str(error))
            return None
        return verdict

    def _roll_back(self, request: Request, draft: Draft | None, verdict: Verdict) -> None:
        """Leave in the KV cache what is committed, less the last token: its row was never computed."""
        start, request.computed = request.computed, len(request.view.tokens) - 1
        if draft is None:
            return
        if draft.parents is not None:
            self._model.keep_path(request.seq, start, [0, *(node + 1 for node in verdict.path)])
        self._model.truncate(request.seq, request.computed)

    def _finish_prefill(self, prefill: Sequence[tuple[Request, int]], logits: Logits) -> list[Event]:
        events: list[Event] = []
        row, most = 0, self.setup.drafters.successors
        for request, count in prefill:
            wanted = request.wanted(count)
            rows, row = logits[row : row + wanted], row + wanted
            if request.scoring and not score_prompt(request, count, rows, events):
                continue
            request.computed += count
            kept = len(request.view.tokens)
            if request.computed < kept:
                continue
            if kept >= request.max_total:
                request.finish = FinishReason.LENGTH  # nothing was to be generated
            elif self._accept(request, None, rows[-1:], events) is not None:
                committed, last = tuple(request.view.tokens[kept:]), request.view.tokens[kept - 1]
                successors = verified_successors(last, None, rows[-1:], most) if most else ()
                outcome = Outcome(kept, committed, successors=successors)
                self.setup.drafters.observe(request.view, outcome)
        return events


def score_prompt(request: Request, count: int, rows: Logits, events: list[Event]) -> bool:
    """Add to `events` the log-probabilities of the prompt's tokens that the logits of its next `count` rows
    are about. False if this request cannot go on: it ends with an error.
    """
    end = min(request.computed + count + 1, request.view.prompt_length)
    tokens = request.view.tokens[request.scored : end]
    try:
        for token, row in zip(tokens, rows, strict=False):  # the prompt's last row is about the answer
            logprob = request.sampler.logprob(row, token)
            events.append(PromptEvent(request.id, token, "", TARGET, logprob))
    except ForedraftError as error:
        request.fail(str(error))
        return False
    request.scored = max(request.scored, end)
    return True


def accept_tokens(request: Request, draft: Draft | None, verdict: Verdict, rows: Logits) -> list[Event]:
    """Commit a verdict's tokens up to the one that ends the request, if any: nothing is kept after it."""
    events: list[Event] = []
    for i, token in enumerate(verdict.tokens):
        origin = draft.source if draft and i < verdict.accepted else TARGET
        logprob = None
        if request.params.logprobs is not None:
            logprob = request.sampler.logprob(rows[verdict.row_of(i)], token)
        text = request.accept(token)
        events.append(TokenEvent(request.id, token, text, origin, logprob))
        if request.finish is not None:
            break
    return events


def _verified(decoding: Sequence[Request], drafts: Sequence[Draft | None]) -> int:
    """Rows of a forward that decode: one for each request, and the drafts."""
    return len(decoding) + sum(len(draft) for draft in drafts if draft)


def _batch(
    decoding: Sequence[Request], drafts: Sequence[Draft | None], prefill: Sequence[tuple[Request, int]]
) -> list[Rows]:
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
        batch.append(Rows(request.seq, first, tokens, request.wanted(count)))
    return batch
