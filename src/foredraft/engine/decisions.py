"""What was decided lately, kept or told as it happens, and what each drafter did in all.

A round leaves a few numbers and names here, which takes 1 to 2 µs. They become `Decision` objects when
somebody reads them, or listens.
"""

from __future__ import annotations

import logging
from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from types import MappingProxyType
from typing import NamedTuple

from foredraft.engine.request import Request
from foredraft.planner.decision import Candidate, Choice, Decision, Estimate, Why, width_of
from foredraft.types import Draft, DrafterStats, DraftLimit, Load, Round

KEPT = 32
"""Rounds that are kept."""

Limits = Mapping[str, Sequence[DraftLimit | None]]
Listener = Callable[[Decision], None]

logger = logging.getLogger(__name__)


class Plan(NamedTuple):
    """What was planned and drafted for the requests of a round, each in its place.

    `wanted` are the successors to be told of; `limits` is empty where nobody was asked. `estimates` and
    `measuring` are the planner's, where it has them; `learning_ms` went by while earlier rounds were learnt
    from. `resting`: nobody could be asked, so that nobody needs to hear of the round at once. `aside`: nor
    of this one, in which somebody was, unless one of the candidates began right.
    """

    drafts: Sequence[Draft | None]
    draft_ms: Mapping[str, float]
    wanted: Sequence[int]
    limits: Limits = MappingProxyType({})
    candidates: Sequence[Sequence[Draft]] = ()
    estimates: Sequence[Estimate] = ()
    learning_ms: float = 0.0
    measuring: bool = False
    resting: bool = False
    aside: bool = False

    def asked(self, place: int) -> list[str]:
        """The drafters that were asked for the request in that place."""
        limits = ((name, self.limits[name][place]) for name in self.draft_ms)
        return [name for name, limit in limits if limit and limit.max_tokens > 0]


@cache
def plain(requests: int, *, resting: bool) -> Plan:
    """A round of so many requests without a draft, made once: between two forwards that takes time."""
    return Plan((None,) * requests, MappingProxyType({}), (0,) * requests, resting=resting)


_Parents = Sequence[int] | None

_Found = Sequence[Sequence[tuple[str, int, Mapping[str, float], _Parents]]]
"""Source, length, features and parents of each candidate, request by request."""

_Done = Sequence[tuple[int, str | None, int, int, int, _Parents]]
"""Request, source and length of its draft, accepted and committed tokens, the draft's parents."""


class _Kept(NamedTuple):
    """A round, without its drafts: they hold texts, and some of them megabytes of probabilities.

    `requests` and `dropped` (those whose drafts had no room in the KV cache) are ids; `requests` is None
    where `done` has all of them. `times` are planning, forward, sampling, and the planner's own.
    """

    number: int
    requests: Sequence[int] | None
    limits: Limits
    found: _Found
    measuring: bool
    estimates: Sequence[Estimate]
    done: _Done
    dropped: Sequence[int]
    rows: int
    load: Load
    draft_ms: Mapping[str, float]
    times: tuple[float, float, float, float]


class _Plain(NamedTuple):
    """A round in which nobody was asked: most rounds of a text that no drafter knows, so it is quickly kept.

    `requests` as in `_Kept`.
    """

    number: int
    requests: Sequence[int] | None
    measuring: bool
    measured: Round
    planner_ms: float

    def whole(self) -> _Kept:
        measured = self.measured
        done = [(request, None, 0, 0, len(outcome.tokens), None) for request, outcome in measured.outcomes]
        times = measured.plan_ms, measured.forward_ms, measured.sample_ms, self.planner_ms
        empty: Limits = MappingProxyType({})
        asked = self.number, self.requests, empty, (), self.measuring, ()
        return _Kept(*asked, done, (), measured.rows, measured.load, {}, times)


class Decisions:
    """The last `kept` rounds in which drafters could have been asked, and whoever listens to them. `catch_up`
    is called before anything is read: it may `note` more rounds.
    """

    def __init__(self, catch_up: Callable[[], object], kept: int = KEPT) -> None:
        self._catch_up = catch_up
        self._kept: deque[_Kept | _Plain] = deque(maxlen=kept)
        self._listeners: list[Listener] = []
        self._totals: defaultdict[str, list[float]] = defaultdict(lambda: [0, 0, 0, 0.0])
        self._rounds = 0

    def watch(self, listener: Listener) -> Callable[[], None]:
        """Have `listener` told of every round when it is over; returns what ends that.

        It is called by the engine's thread, which waits for it. One that raises is logged and told nothing
        more.
        """
        self._catch_up()
        self._listeners.append(listener)

        def end() -> None:
            if listener in self._listeners:
                self._listeners.remove(listener)

        return end

    @property
    def watched(self) -> bool:
        """Whether anybody listens."""
        return bool(self._listeners)

    def latest(self) -> list[Decision]:
        """The rounds that are kept, oldest first."""
        self._catch_up()
        return [_decision(kept) for kept in self._kept]

    def totals(self) -> dict[str, DrafterStats]:
        """What each drafter did since the engine was made, requests that still run included."""
        self._catch_up()
        return {
            name: DrafterStats(int(drafts), int(drafted), int(accepted), round(ms, 3))
            for name, (drafts, drafted, accepted, ms) in self._totals.items()
        }

    def note(
        self, decoding: Sequence[Request], plan: Plan, measured: Round, planner_ms: float, *, dropped: bool
    ) -> None:
        """A round is over. `dropped`: the KV cache had no room for its drafts."""
        self._rounds += 1
        if not plan.limits:
            everyone = len(measured.outcomes) == len(decoding)
            requests = None if everyone else [request.id for request in decoding]
            self._keep(_Plain(self._rounds, requests, plan.measuring, measured, planner_ms))
            return
        found: _Found = ()
        if plan.candidates:
            found = [
                [(draft.source, len(draft.tokens), draft.features, draft.parents) for draft in its]
                for its in plan.candidates
            ]
        lost: Sequence[int] = ()
        if dropped:
            lost = [request.id for request, draft in zip(decoding, plan.drafts, strict=True) if draft]
        done = self._count(measured, plan.draft_ms)
        kept = _Kept(
            self._rounds,
            None if len(done) == len(decoding) else [request.id for request in decoding],
            plan.limits,
            found,
            plan.measuring,
            plan.estimates,
            done,
            lost,
            measured.rows,
            measured.load,
            measured.draft_ms,
            (measured.plan_ms, measured.forward_ms, measured.sample_ms, planner_ms),
        )
        self._keep(kept)

    def _keep(self, kept: _Kept | _Plain) -> None:
        self._kept.append(kept)
        if self._listeners:
            self._tell(_decision(kept))

    def _count(self, measured: Round, draft_ms: Mapping[str, float]) -> _Done:
        """Add to the totals."""
        done: list[tuple[int, str | None, int, int, int, _Parents]] = []
        for request, outcome in measured.outcomes:
            draft = outcome.draft
            if draft is None:
                done.append((request, None, 0, 0, len(outcome.tokens), None))
                continue
            length, accepted = len(draft.tokens), outcome.accepted
            done.append((request, draft.source, length, accepted, len(outcome.tokens), draft.parents))
            total = self._totals[draft.source]
            total[0] += 1
            total[1] += length
            total[2] += accepted
        for name in draft_ms:
            self._totals[name][3] += draft_ms[name]
        return done

    def _tell(self, decision: Decision) -> None:
        for listener in list(self._listeners):
            try:
                listener(decision)
            except Exception:
                logger.exception("A listener to decisions failed and is told nothing more.")
                self._listeners.remove(listener)


def _decision(kept: _Kept | _Plain) -> Decision:
    if isinstance(kept, _Plain):
        kept = kept.whole()
    plan_ms, forward_ms, sample_ms, planner_ms = kept.times
    requests = kept.requests if kept.requests is not None else [done[0] for done in kept.done]
    return Decision(
        number=kept.number,
        rows=kept.rows,
        prefill_rows=kept.load.prefill_rows,
        depth=kept.load.depth,
        draft_ms=kept.draft_ms,
        plan_ms=plan_ms,
        forward_ms=forward_ms,
        sample_ms=sample_ms,
        planner_ms=planner_ms,
        choices=tuple(_choice(kept, place, request) for place, request in enumerate(requests)),
    )


def _choice(kept: _Kept, place: int, request: int) -> Choice:
    """What the round did for the request at this place in it."""
    limits = {name: limit for name, row in kept.limits.items() if (limit := row[place]) is not None}
    estimate = kept.estimates[place] if kept.estimates else None
    survival = estimate.survival if estimate else ()
    candidates = tuple(
        Candidate(source, length, features, tuple(survival[i]) if survival else (), width_of(parents))
        for i, (source, length, features, parents) in enumerate(kept.found[place] if kept.found else ())
    )
    its = next((done for done in kept.done if done[0] == request), None)
    _, source, length, accepted, committed, parents = its or (request, None, 0, 0, 0, None)
    reason = None
    if its is None:
        reason = Why.FAILED
    elif not length:
        reason = Why.NO_CELLS if request in kept.dropped else _why_not(kept, limits, candidates, estimate)
    return Choice(
        request=request,
        asked=tuple(name for name, limit in limits.items() if limit.max_tokens > 0),
        candidates=candidates,
        source=source,
        length=length,
        gain=estimate.gain if estimate and candidates else None,
        reason=reason,
        accepted=accepted,
        committed=committed,
        width=width_of(parents) if length else 0,
    )


def _why_not(
    kept: _Kept,
    limits: Mapping[str, DraftLimit],
    candidates: Sequence[Candidate],
    estimate: Estimate | None,
) -> Why:
    """Why a draft was not chosen for a request: the first of the reasons that applies."""
    if kept.measuring:
        return Why.MEASURING
    if not limits:
        return Why.NOT_ASKED
    if not any(limit.max_tokens > 0 for limit in limits.values()):
        return Why.NO_ROOM
    if not candidates:
        return Why.NOTHING_FOUND
    if estimate is None:
        return Why.NOT_CHOSEN
    if not estimate.pays:
        return Why.NOT_WORTH
    return Why.SHARED if estimate.allowed else Why.TOO_RISKY
