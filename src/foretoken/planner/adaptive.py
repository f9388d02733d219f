"""`auto`: draft where, and as far as, this run's own measurements say that it pays.

The rate of a round is (tokens it is expected to commit) ÷ (time it is expected to take). For every round
all candidates and lengths are compared with not drafting at all, with survival from `calibration` and V(n)
from `cost`; drafting must win by a margin with a cautious estimate of survival.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from foretoken.planner.calibration import Survival, sampled
from foretoken.planner.cost import CostCurve
from foretoken.protocols import RequestView
from foretoken.types import Draft, DraftLimit, Load, Round

MARGIN = 1.03
"""How much better than plain decoding the cautious estimate must be."""

CAUTION = 0.5
"""Standard deviations taken off survival when deciding."""

FREE = 0.02
"""A drafter that costs less than this share of a plain forward always drafts: that is how it is measured."""

PROBE_BUDGET = 0.01
"""Share of the time that may go into trying a costly drafter that does not seem to pay."""

LONGEST = 64

CERTAIN = 1e9
"""Ranks the tokens of a draft that must be verified whole before all others."""


class _Cost:
    """What a drafter costs: milliseconds per drafted token, forgetting old rounds."""

    def __init__(self) -> None:
        self.ms = 0.0
        self.tokens = 0.0
        self.accepted = 0.0
        self.drafts = 0.0

    def add(self, ms: float, tokens: int) -> None:
        for name, value in (("ms", ms), ("tokens", tokens), ("drafts", 1)):
            setattr(self, name, 0.97 * getattr(self, name) + value)

    @property
    def per_token(self) -> float:
        return self.ms / max(1.0, self.tokens)

    @property
    def per_draft(self) -> float:
        return self.ms / max(1.0, self.drafts)


class AdaptivePlanner:
    """The planner of `auto`."""

    def __init__(self) -> None:
        self._survival = Survival()
        self._curve = CostCurve()
        self._costs: dict[str, _Cost] = {}
        self._spent = {"total": 0.0, "probes": 0.0}
        self._reach: dict[str, float] = {}
        self._drafted = {"now": 0, "asked": 0}
        self._candidates_seen = False

    def start(self, request: RequestView) -> None:
        pass

    def stop(self, request: RequestView) -> None:
        self._survival.forget(request.id)

    def limits(
        self, requests: Sequence[RequestView], drafters: Sequence[str], load: Load
    ) -> Mapping[str, Sequence[DraftLimit | None]]:
        """Model-free drafters always draft (microseconds); costly ones where they pay, or as a probe."""
        if not self._curve.known:
            return {}
        return {name: [self._limit(name, load)] * len(requests) for name in drafters}

    def _limit(self, name: str, load: Load) -> DraftLimit | None:
        cost = self._costs.get(name)
        if cost is None or cost.per_draft <= FREE * self._curve.single_ms:
            return DraftLimit(LONGEST)
        reach = self._reach.get(name, 0.5)
        best, length = 1.0, 0
        plain = self._curve.ratio(max(1, load.decoding))
        survival, expected = 1.0, 1.0
        for depth in range(1, LONGEST):
            survival *= reach
            expected += survival
            draft_ratio = depth * cost.per_token / self._curve.single_ms
            rate = expected * plain / (self._curve.ratio(load.decoding + depth) + draft_ratio)
            if rate > best * MARGIN:
                best, length = rate, depth
        if length:
            return DraftLimit(length, min_survival=self._floor(cost, best))
        if self._spent["probes"] <= PROBE_BUDGET * self._spent["total"]:
            return DraftLimit(2)
        return None

    def _floor(self, cost: _Cost, rate: float) -> float:
        """The survival under which one more draft token costs more than it brings."""
        marginal = cost.per_token / self._curve.single_ms + self._curve.ratio(2) - 1.0
        return min(0.9, marginal * min(1.0, 1.0 / rate) * 0.5)

    def choose(
        self, requests: Sequence[RequestView], candidates: Sequence[Sequence[Draft]], load: Load
    ) -> list[Draft | None]:
        best: list[tuple[Draft, list[float]] | None] = []
        for request, drafts in zip(requests, candidates, strict=True):
            self._survival.remember(request.id, drafts)
            fixed = sampled(drafts)
            if fixed is not None:
                best.append((fixed, [CERTAIN] * len(fixed)))
                continue
            scored = [(draft, self._survival.estimate(draft, CAUTION)) for draft in drafts]
            best.append(max(scored, key=lambda pair: self._gain(pair[1], load), default=None))
        lengths = self._lengths([pair[1] if pair else [] for pair in best], load)
        self._drafted["asked"] = sum(pair is not None for pair in best)
        self._drafted["now"] = sum(length > 0 for length in lengths)
        return [
            pair[0].cut(length) if pair and length else None
            for pair, length in zip(best, lengths, strict=True)
        ]

    def _gain(self, survivals: Sequence[float], load: Load) -> float:
        """The best rate this draft alone could reach."""
        expected, best = float(load.decoding), 0.0
        for depth, survival in enumerate(survivals, 1):
            expected += survival
            best = max(best, expected / self._curve.ratio(load.decoding + depth))
        return best

    def _lengths(self, survivals: Sequence[Sequence[float]], load: Load) -> list[int]:
        """Draft lengths that maximise the rate of the one forward all requests share.

        Every draft token adds its survival to the expected tokens and a row to the cost, whichever request
        it belongs to; survival falls along a draft. So the best set of any size is the tokens of highest
        survival, and one scan over all sizes finds the best one, whatever the shape of V(n).
        """
        ranked = sorted(
            ((survival, i) for i, chain in enumerate(survivals) for survival in chain), reverse=True
        )
        rows = load.decoding + load.prefill_rows
        plain = load.decoding / self._curve.ratio(rows)
        expected, best, count = float(load.decoding), plain * MARGIN, 0
        for size, (survival, _) in enumerate(ranked, 1):
            expected += survival
            rate = expected / self._curve.ratio(rows + size)
            if rate > best:
                best, count = rate, size
        lengths = [0] * len(survivals)
        for _, i in ranked[:count]:
            lengths[i] += 1
        return lengths

    def observe(self, measured: Round) -> None:
        self._curve.add(measured.rows, measured.forward_ms)
        total = measured.forward_ms + measured.sample_ms + sum(measured.draft_ms.values())
        self._spent["total"] += total
        drafted: dict[str, int] = {}
        for request, outcome in measured.outcomes:
            self._survival.score(request, outcome)
            if outcome.draft is not None:
                source = outcome.draft.source
                drafted[source] = drafted.get(source, 0) + len(outcome.draft)
                self._learn_reach(source, outcome.accepted, len(outcome.draft))
        for name, ms in measured.draft_ms.items():
            self._costs.setdefault(name, _Cost()).add(ms, drafted.get(name, 1))
            if ms > FREE * self._curve.single_ms:
                self._spent["probes"] += ms

    def _learn_reach(self, source: str, accepted: int, length: int) -> None:
        tried = accepted + (accepted < length)
        if tried:
            self._reach[source] = 0.9 * self._reach.get(source, 0.5) + 0.1 * accepted / tried

    def reason(self) -> str | None:
        if not self._curve.known:
            return "measuring the cost of plain decoding first"
        if self._drafted["now"]:
            return None
        if not self._drafted["asked"]:
            return "no drafter finds anything to propose here"
        return "the drafts found are not expected to pay for their verification"
