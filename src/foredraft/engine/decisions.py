"""The last rounds as they were decided, to be read or watched, and what each drafter did in all."""

from __future__ import annotations

import logging
from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import NamedTuple

from foredraft.engine.drafting import Limits
from foredraft.planner.records import Candidate, RequestRecord, RoundRecord, width_of
from foredraft.types import Choice, Draft, DrafterStats, Reason, Round

KEPT = 32
"""Rounds that are kept."""

Listener = Callable[[RoundRecord], None]

logger = logging.getLogger(__name__)


class Plan(NamedTuple):
    """What was planned and drafted for the requests of a round, each in its place; `plan_ms` without
    drafting. Everything but `choices` is empty where no drafter was called.
    """

    choices: Sequence[Choice]
    limits: Limits = MappingProxyType({})
    candidates: Sequence[Sequence[Draft]] = ()
    draft_ms: Mapping[str, float] = MappingProxyType({})
    planned: bool = True
    """Whether there were drafters to plan for."""

    @property
    def drafts(self) -> list[Draft | None]:
        return [choice.draft for choice in self.choices]


class _Kept(NamedTuple):
    """A round without its drafts, which hold text and may hold megabytes of probabilities. `done`: request,
    source, length and width of the draft, accepted and committed tokens, of each request that can go on.
    """

    number: int
    requests: Sequence[int]
    asked: Sequence[Sequence[str]]
    candidates: Sequence[tuple[Candidate, ...]]
    reasons: Sequence[Reason | None]
    gains: Sequence[float | None]
    done: dict[int, tuple[str | None, int, int, int, int]] | None
    """None where no drafter was called: `measured` has its outcomes."""
    measured: Round


class Decisions:
    """The last `kept` rounds in which drafters could be called, listeners to all rounds, and totals by
    drafter. Rounds only of requests whose drafting is switched off are not kept: nothing was decided.
    """

    def __init__(self, kept: int = KEPT) -> None:
        self._kept: deque[_Kept] = deque(maxlen=kept)
        self._listeners: list[Listener] = []
        self._totals: defaultdict[str, list[float]] = defaultdict(lambda: [0, 0, 0, 0.0])
        self._rounds = 0

    def watch(self, listener: Listener) -> Callable[[], None]:
        """Call `listener` with every round when it is over; returns what ends that.

        It runs on the engine's thread, which waits for it. One that raises is logged and dropped.
        """
        self._listeners.append(listener)

        def end() -> None:
            if listener in self._listeners:
                self._listeners.remove(listener)

        return end

    def latest(self) -> list[RoundRecord]:
        """The rounds that are kept, oldest first."""
        return [_record(kept) for kept in self._kept]

    def reason(self) -> Reason | None:
        """Why nothing was drafted in the last round; None if something was, or there was none."""
        if not self._kept or any(done[1] for done in (self._kept[-1].done or {}).values()):
            return None
        reasons = [reason for reason in self._kept[-1].reasons if reason is not Reason.SWITCHED_OFF]
        return next((reason for reason in reasons if reason), None)

    def totals(self) -> dict[str, DrafterStats]:
        """What each drafter did since the engine was made, requests that still run included."""
        return {
            name: DrafterStats(int(drafts), int(drafted), int(accepted), round(ms, 3))
            for name, (drafts, drafted, accepted, ms) in self._totals.items()
        }

    def add(
        self, requests: Sequence[int], plan: Plan, drafts: Sequence[Draft | None], measured: Round
    ) -> None:
        """A round is over, in which `drafts` were verified: those of the plan, or none if they had no room in
        the KV cache.
        """
        self._rounds += 1
        reasons = [choice.reason for choice in plan.choices]
        if plan.limits:
            kept = self._called(requests, plan, drafts, measured, reasons)
        else:  # most rounds: nothing that is costly to keep, or to look at
            kept = _Kept(self._rounds, requests, (), (), reasons, (), None, measured)
        if any(reason is not Reason.SWITCHED_OFF for reason in reasons):
            self._kept.append(kept)
        for listener in list(self._listeners):
            self._notify(listener, kept)

    def _called(
        self,
        requests: Sequence[int],
        plan: Plan,
        drafts: Sequence[Draft | None],
        measured: Round,
        reasons: list[Reason | None],
    ) -> _Kept:
        """A round in which drafters were called, without its drafts."""
        for i, (choice, draft) in enumerate(zip(plan.choices, drafts, strict=True)):
            if choice.draft is not None and draft is None:
                reasons[i] = Reason.NO_CELLS
        asked, reasons = _asked(plan.limits, reasons)
        done = _done(measured)
        for source, length, _, accepted, _ in done.values():
            if source is not None:
                total = self._totals[source]
                total[0] += 1
                total[1] += length
                total[2] += accepted
        for name, ms in plan.draft_ms.items():
            self._totals[name][3] += ms
        return _Kept(
            self._rounds,
            requests,
            asked,
            [_candidates(its, choice) for its, choice in zip(plan.candidates, plan.choices, strict=True)],
            reasons,
            [choice.estimate.gain if choice.estimate else None for choice in plan.choices],
            done,
            replace(measured, outcomes=()),
        )

    def _notify(self, listener: Listener, kept: _Kept) -> None:
        try:
            listener(_record(kept))
        except Exception:
            logger.exception("A listener to decisions failed and is called no more.")
            self._listeners.remove(listener)


def _asked(limits: Limits, reasons: Sequence[Reason | None]) -> tuple[list[list[str]], list[Reason | None]]:
    """The drafters called for each request; where all were limited to nothing, that is the reason."""
    asked, found = [], list(reasons)
    for place, reason in enumerate(reasons):
        rows = {name: row[place] for name, row in limits.items() if row[place] is not None}
        asked.append([name for name, limit in rows.items() if limit and limit.max_tokens > 0])
        if reason not in (None, Reason.SWITCHED_OFF) and rows and not asked[-1]:
            found[place] = Reason.NO_ROOM
    return asked, found


def _candidates(drafts: Sequence[Draft], choice: Choice) -> tuple[Candidate, ...]:
    survival = choice.estimate.survival if choice.estimate else ()
    return tuple(
        Candidate(
            draft.source,
            len(draft),
            draft.features,
            tuple(survival[i]) if survival else (),
            width_of(draft.parents),
        )
        for i, draft in enumerate(drafts)
    )


def _done(measured: Round) -> dict[int, tuple[str | None, int, int, int, int]]:
    """What became of each request: source, length and width of the draft, accepted and committed tokens."""
    found: dict[int, tuple[str | None, int, int, int, int]] = {}
    for request, outcome in measured.outcomes:
        draft, committed = outcome.draft, len(outcome.tokens)
        if draft is None:
            found[request] = None, 0, 0, 0, committed
        else:
            found[request] = draft.source, len(draft), width_of(draft.parents), outcome.accepted, committed
    return found


def _record(kept: _Kept) -> RoundRecord:
    measured = kept.measured
    done = _done(measured) if kept.done is None else kept.done
    return RoundRecord(
        number=kept.number,
        rows=measured.rows,
        prefill_rows=measured.load.prefill_rows,
        depth=measured.load.depth,
        draft_ms=measured.draft_ms,
        plan_ms=measured.plan_ms,
        forward_ms=measured.forward_ms,
        sample_ms=measured.sample_ms,
        late_ms=measured.late_ms,
        choices=tuple(_request(kept, done, place, request) for place, request in enumerate(kept.requests)),
    )


def _request(
    kept: _Kept, done: Mapping[int, tuple[str | None, int, int, int, int]], place: int, request: int
) -> RequestRecord:
    source, length, width, accepted, committed = done.get(request, (None, 0, 0, 0, 0))
    reason = None if length else kept.reasons[place]
    return RequestRecord(
        request=request,
        asked=tuple(kept.asked[place]) if kept.asked else (),
        candidates=kept.candidates[place] if kept.candidates else (),
        source=source,
        length=length,
        gain=kept.gains[place] if kept.gains else None,
        reason=reason if request in done else Reason.FAILED,
        accepted=accepted,
        committed=committed,
        width=width,
    )
