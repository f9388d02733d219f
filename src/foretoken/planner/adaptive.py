"""`auto`: draft where, and as far as, this run's own measurements say that it pays.

The rate of a round is (tokens it is expected to commit) ÷ (time it is expected to take). For every round
all candidates and lengths are compared with not drafting at all, with survival from `calibration` and V(n)
from `cost`; drafting must win by a margin with a cautious estimate of survival, and no request risks more
than its stake (`stake`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from foretoken.planner.calibration import Survival, sampled
from foretoken.planner.cost import CostCurve
from foretoken.planner.stake import Stakes
from foretoken.planner.worth import PROBE_BUDGET, DrafterWorth
from foretoken.protocols import RequestView
from foretoken.types import Draft, DraftLimit, Load, Round

MARGIN = 1.03
"""How much better than plain decoding the cautious estimate must be."""

CAUTION = 1.0
"""Standard deviations taken off survival when deciding."""


class AdaptivePlanner:
    """The planner of `auto`."""

    def __init__(self) -> None:
        self._survival = Survival()
        self._curve = CostCurve()
        self._worth: dict[str, DrafterWorth] = {}
        self._stakes = Stakes()
        self._total_ms = 0.0
        self._probe_ms = 0.0
        self._found = False
        self._drafting = False

    def start(self, request: RequestView) -> None:
        """Nothing is kept for a request before its first round."""

    def stop(self, request: RequestView) -> None:
        self._survival.forget(request.id)
        self._stakes.forget(request.id)

    def limits(
        self, requests: Sequence[RequestView], drafters: Sequence[str], load: Load
    ) -> Mapping[str, Sequence[DraftLimit | None]]:
        if not self._curve.known:
            return {}
        may_probe = self._probe_ms <= PROBE_BUDGET * self._total_ms
        limits: dict[str, Sequence[DraftLimit | None]] = {}
        for name in drafters:
            limit = self._worth.setdefault(name, DrafterWorth()).limit(
                self._curve.ratio,
                self._curve.single_ms,
                decoding=load.decoding,
                margin=MARGIN,
                may_probe=may_probe,
            )
            limits[name] = [limit] * len(requests)
        return limits

    def choose(
        self, requests: Sequence[RequestView], candidates: Sequence[Sequence[Draft]], load: Load
    ) -> list[Draft | None]:
        chosen: list[Draft | None] = []
        survivals: list[list[float]] = []
        for request, drafts in zip(requests, candidates, strict=True):
            self._survival.remember(request.id, drafts)
            draft = sampled(drafts)
            chain: list[float] = []
            if draft is None:
                draft, chain = self._best(drafts, load)
                chain = chain[: self._stakes.cut(request.id, chain, self._curve.ratio)]
            chosen.append(draft)
            survivals.append(chain)
        whole = [len(draft) if draft and draft.probs is not None else 0 for draft in chosen]
        lengths = self._lengths(survivals, load, taken=sum(whole))
        self._found = any(draft is not None for draft in chosen)
        self._drafting = any(lengths) or any(whole)
        return [
            draft.cut(max(length, all_of_it)) if draft and length + all_of_it else None
            for draft, length, all_of_it in zip(chosen, lengths, whole, strict=True)
        ]

    def _best(self, drafts: Sequence[Draft], load: Load) -> tuple[Draft | None, list[float]]:
        """The candidate that could reach the best rate alone, and its tokens' survival."""
        best: tuple[Draft | None, list[float]] = (None, [])
        highest = 0.0
        for draft in drafts:
            chain = self._survival.estimate(draft, CAUTION)
            rate = self._peak_rate(chain, load)
            if rate > highest:
                best, highest = (draft, chain), rate
        return best

    def _peak_rate(self, survivals: Sequence[float], load: Load) -> float:
        expected, best = float(load.decoding), 0.0
        for depth, survival in enumerate(survivals, 1):
            expected += survival
            best = max(best, expected / self._curve.ratio(load.decoding + depth))
        return best

    def _lengths(self, survivals: Sequence[Sequence[float]], load: Load, *, taken: int = 0) -> list[int]:
        """Draft lengths that maximise the rate of the one forward all requests share, beside `taken` draft
        tokens that are verified in any case.

        Every draft token adds its survival to the expected tokens and a row to the cost, whichever request
        it belongs to; survival falls along a draft. So the best set of any size is the tokens of highest
        survival, and one scan over all sizes finds the best one, whatever the shape of V(n).
        """
        ranked = sorted(
            ((survival, i) for i, chain in enumerate(survivals) for survival in chain), reverse=True
        )
        rows = load.decoding + load.prefill_rows + taken
        expected, count = float(load.decoding), 0
        best = MARGIN * load.decoding / self._curve.ratio(rows)
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
        self._total_ms += measured.forward_ms + measured.sample_ms + sum(measured.draft_ms.values())
        tokens = dict.fromkeys(measured.draft_ms, 0)
        rows = sum(1 + len(outcome.draft or ()) for _, outcome in measured.outcomes)
        for request, outcome in measured.outcomes:
            self._survival.score(request, outcome)
            draft = outcome.draft
            share = (1 + len(draft or ())) / rows
            extra = self._curve.ratio(rows) - self._curve.ratio(len(measured.outcomes))
            self._stakes.settle(request, len(outcome.tokens), 1.0 + extra * share)
            if draft is not None and draft.source in self._worth:
                tokens[draft.source] = tokens.get(draft.source, 0) + len(draft)
                self._worth[draft.source].verified(outcome.accepted, len(draft))
        for name, ms in measured.draft_ms.items():
            worth = self._worth.get(name)
            if worth is None:
                continue
            worth.drafted(ms, tokens[name])
            if worth.probing:
                self._probe_ms += ms

    def reason(self) -> str | None:
        if not self._curve.known:
            return "the cost of plain decoding is measured first"
        if self._drafting:
            return None
        if not self._found:
            return "no drafter finds anything to propose here"
        return "the drafts found are not expected to pay for their verification"
