"""A round: plan → draft → forward → verify → commit → observe."""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter

from foretoken.engine.drafting import Drafters
from foretoken.engine.request import Request
from foretoken.engine.scheduler import Scheduler
from foretoken.engine.stats import PlainRounds
from foretoken.engine.verify import verify
from foretoken.protocols import Model, Planner
from foretoken.types import TARGET, Draft, Event, Load, Logits, Outcome, Round, Rows, TokenEvent, Verdict


class RoundRunner:
    """Runs rounds over the scheduler's requests. Finished requests are left marked with `finish`."""

    def __init__(self, model: Model, scheduler: Scheduler, drafters: Drafters, planner: Planner) -> None:
        self._model = model
        self._scheduler = scheduler
        self._drafters = drafters
        self._planner = planner
        self.plain_rounds = PlainRounds()

    def run(self) -> list[Event]:
        """One target forward. Raises what `Model.forward` raises, with every request's state as before."""
        decoding = self._scheduler.decoding()
        load = self._scheduler.load(decoding)
        drafts, draft_ms = self._plan_and_draft(decoding, load)
        used = len(decoding) + sum(len(draft) for draft in drafts if draft)
        prefill = self._scheduler.prefilling(self._model.capabilities.max_batch - used)

        began = perf_counter()
        logits = self._model.forward(_batch(decoding, drafts, prefill))
        forwarded = perf_counter()
        events, outcomes = self._commit(decoding, drafts, logits)
        events += self._finish_prefill(prefill, logits[used:])
        done = perf_counter()

        if decoding:
            forward_ms = 1e3 * (forwarded - began)
            if not prefill and used == len(decoding) == 1:
                self.plain_rounds.add(forward_ms + 1e3 * (done - forwarded))
            if self._drafters:
                rows = used + sum(count for _, count in prefill)
                measured = Round(load, rows, draft_ms, forward_ms, 1e3 * (done - forwarded), tuple(outcomes))
                self._planner.observe(measured)
        return events

    def _plan_and_draft(
        self, decoding: list[Request], load: Load
    ) -> tuple[Sequence[Draft | None], dict[str, float]]:
        if not self._drafters or not decoding:
            return [None] * len(decoding), {}
        views = [request.view for request in decoding]
        wished = self._planner.limits(views, self._drafters.names, load)
        rows = self._model.capabilities.max_rows - 1
        spare = (self._model.capabilities.max_batch - len(decoding)) // len(decoding)
        room = [min(request.room, rows, spare) for request in decoding]
        limits = {
            name: [limit and limit.within(most) for limit, most in zip(limits, room, strict=True)]
            for name, limits in wished.items()
        }
        candidates, spent = self._drafters.draft(decoding, limits)
        return self._planner.choose(views, candidates, load), spent

    def _commit(
        self, decoding: list[Request], drafts: Sequence[Draft | None], logits: Logits
    ) -> tuple[list[Event], list[tuple[int, Outcome]]]:
        events: list[Event] = []
        outcomes: list[tuple[int, Outcome]] = []
        first = 0
        for request, draft in zip(decoding, drafts, strict=True):
            end = first + 1 + (len(draft) if draft else 0)
            rows, first = logits[first:end], end
            start = request.computed
            kept = len(request.view.tokens)
            verdict = verify(request, draft, rows)
            events += accept_tokens(request, draft, verdict, rows)
            committed = tuple(request.view.tokens[kept:])
            self._roll_back(request, draft, verdict, start)
            accepted = min(verdict.accepted, len(committed))
            request.stats.round(draft, accepted, len(committed))
            outcome = Outcome(kept, committed, draft, accepted)
            outcomes.append((request.id, outcome))
            if self._drafters:
                self._drafters.observe(request.view, outcome)
        return events, outcomes

    def _roll_back(self, request: Request, draft: Draft | None, verdict: Verdict, start: int) -> None:
        """Leave in the KV cache what is committed, less the last token: its row was never computed."""
        request.computed = len(request.view.tokens) - 1
        if draft is None:
            return
        if draft.parents is not None:
            self._model.keep_path(request.seq, start, [0, *(node + 1 for node in verdict.path)])
        self._model.truncate(request.seq, request.computed)

    def _finish_prefill(self, prefill: Sequence[tuple[Request, int]], logits: Logits) -> list[Event]:
        events: list[Event] = []
        row = 0
        for request, count in prefill:
            request.computed += count
            if request.computed < len(request.view.tokens):
                continue
            rows, row = logits[row : row + 1], row + 1
            kept = len(request.view.tokens)
            events += accept_tokens(request, None, verify(request, None, rows), rows)
            if self._drafters:
                self._drafters.observe(request.view, Outcome(kept, tuple(request.view.tokens[kept:])))
        return events


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
        complete = first + count == len(request.view.tokens)
        batch.append(Rows(request.seq, first, tokens, 1 if complete else 0))
    return batch
