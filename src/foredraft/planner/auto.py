"""`auto`: draft where, and as far as, this run's own measurements show that it pays.

The contract of a planner, without arithmetic: `account` decides which requests attempt a draft, `acceptance`
how likely its tokens are, `cost` what they cost, `decide` which of them are verified.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from statistics import median
from typing import NamedTuple

from foredraft.planner.acceptance import Acceptance, caution, depth_of, sampled
from foredraft.planner.account import RATE, Account
from foredraft.planner.cost import CostCurve
from foredraft.planner.decide import (
    MARGIN,
    OVERDRAFT,
    affordable,
    chain_paying,
    draft_lengths,
    gain_of,
    lengths_in_passes,
    needed,
    peak_rate,
)
from foredraft.planner.draft_model import MAX_SAVED, Beside, DraftModels, Offer
from foredraft.planner.purse import Purse
from foredraft.planner.recompute import Recompute
from foredraft.planner.tree import Tree, TreeMerger, may_merge
from foredraft.protocols import Proposer, RequestView
from foredraft.types import (
    MAX_DRAFT_TOKENS,
    Capabilities,
    Choice,
    Draft,
    DraftLimit,
    Estimate,
    Load,
    Outcome,
    Reason,
    Round,
)

ATTEMPT_PRIOR_MS = 0.3
"""What an attempt takes for one request, before any was measured: drafting, choosing and learning."""

LARGE = 0.1
"""Plain rounds above which what a round without an attempt takes beside its forward is charged whole. The
engine's own time, measured at 0.1 ms, counts as half of `RATE` at most: a request could not change it.
"""

ATTEMPTS = 15
"""Attempts of the rolling median of what one takes."""

UNLEARNT = 32
"""Rounds without an attempt that are learnt from together, at most."""


class Risk(NamedTuple):
    """The arguments of `affordable` and `needed`."""

    paying: Sequence[float]
    extra: Sequence[float]
    bound: Sequence[float]


@dataclass(frozen=True, slots=True)
class _Best:
    """The best candidate of a request: what its tokens survive with, as far as the budget covers them."""

    draft: Draft | Tree
    survival: Sequence[float]
    estimate: Estimate


class AutoPlanner:
    """The planner of `auto`, for a model of these `capabilities`."""

    def __init__(self, capabilities: Capabilities) -> None:
        self.cost = CostCurve(ragged=capabilities.ragged)
        self.usual_adapter = ""
        """That of most requests; what is kept between runs is of these."""
        self._acceptance: dict[str, Acceptance] = {}
        """By adapter: what is right for one says little of another."""
        self._adapters: dict[int, str] = {}
        """Of each request."""
        self._trees = capabilities.trees
        self._merger = TreeMerger()
        self._draft_models = DraftModels()
        self._recompute = Recompute(capabilities)
        self._accounts: dict[int, Account] = {}
        self._drafters: Sequence[Proposer] = ()
        self._attempts_ms = deque([ATTEMPT_PRIOR_MS], ATTEMPTS)
        self._attempt_ms = ATTEMPT_PRIOR_MS
        self._plans_ms = deque([ATTEMPT_PRIOR_MS], ATTEMPTS)
        """What planning and learning take for each request where only costly drafters are asked."""
        self._late_ms, self._attempted = 0.0, False
        self._costly: list[str] = []
        self._asking: set[str] = set()
        """Costly drafters that may be asked in this round."""
        self._proposed: dict[str, int] = {}
        self._attempting: frozenset[int] = frozenset()
        self._purse: Purse | None = None
        """None where costs are not known in this round."""
        self._budget = self._overdraft = 0.0
        self._reason = Reason.MEASURING
        self._unlearnt: list[Round] = []
        self._chosen_at: dict[int, int] = {}
        """Length of each request's text when its candidates were weighed."""

    def start(self, request: RequestView, drafters: Sequence[Proposer]) -> None:
        self._accounts[request.id] = Account()
        self._adapters[request.id] = request.adapter
        self._drafters = drafters
        for drafter in drafters:
            if drafter.costly:
                self._draft_models.add(drafter)
        self._costly = self._find_costly()

    def _find_costly(self) -> list[str]:
        return [it.name for it in self._drafters if it.costly or self._draft_models.costly(it.name)]

    def stop(self, request: RequestView) -> None:
        self._learn_all()
        over = self._accounts.pop(request.id, Account())
        for account in self._accounts.values():  # what it borrowed of them
            account.budget += min(0.0, over.budget) / len(self._accounts)
        self._chosen_at.pop(request.id, None)
        self.acceptance_of(request.id).forget(request.id)
        self._adapters.pop(request.id, None)
        self._merger.forget(request.id)
        self._recompute.forget(request.id)
        self._draft_models.stop(request, max(0.0, over.left))

    def acceptance_of(self, request: int) -> Acceptance:
        """The acceptance model of a request's adapter."""
        return self._acceptance_with(self._adapters.get(request, self.usual_adapter))

    def _acceptance_with(self, adapter: str) -> Acceptance:
        if adapter not in self._acceptance:
            self._acceptance[adapter] = Acceptance()
        return self._acceptance[adapter]

    # --- which requests attempt a draft -----------------------------------------------------------------

    def limits(
        self, requests: Sequence[RequestView], load: Load
    ) -> Mapping[str, Sequence[DraftLimit | None]]:
        self.cost.focus(load)
        self._draft_models.focus(load.adapters)
        unlearnt = RATE * len(self._unlearnt)
        self._budget = sum([self._accounts[request.id].budget + unlearnt for request in requests])
        self._overdraft = OVERDRAFT * len(requests)
        self._attempting = self._attempts(requests)
        self._reason, self._purse = Reason.BACK_OFF, None
        self._asking = {name for name in self._costly if not self._draft_models.resting(name)}
        if not self._attempting and not self._asking:
            return {}
        self._learn_all()
        # Again: what was learnt was of other rounds.
        self.cost.focus(load)
        if not self.cost.known or self.cost.stale:
            self._attempting, self._reason = frozenset(), Reason.MEASURING
            return {}
        limits: dict[str, Sequence[DraftLimit | None]] = {}
        cheap = self._cheap_limit(load)
        self._purse = Purse(self.cost, self._budget, self._overdraft, self._draft_models.saved)
        for name in [drafter.name for drafter in self._drafters if not drafter.costly]:
            if name in self._asking:
                limits[name] = self._ask(name, requests, [[]] * len(requests), load)
            elif name not in self._costly:
                limits[name] = [cheap if it.id in self._attempting else None for it in requests]
        return limits if any(any(row) for row in limits.values()) else {}

    def further(
        self, requests: Sequence[RequestView], candidates: Sequence[Sequence[Draft]], load: Load
    ) -> Mapping[str, Sequence[DraftLimit | None]]:
        """Drafters whose tokens take real time, where the others leave something to gain."""
        if self._purse is None:
            return {}
        names = [
            drafter.name for drafter in self._drafters if drafter.costly and drafter.name in self._asking
        ]
        limits = {name: self._ask(name, requests, candidates, load) for name in names}
        return limits if any(any(row) for row in limits.values()) else {}

    def _ask(
        self, name: str, requests: Sequence[RequestView], candidates: Sequence[Sequence[Draft]], load: Load
    ) -> list[DraftLimit | None]:
        """How far a costly drafter drafts for each request, beside these candidates."""
        assert self._purse is not None, "costs are known"
        planning, attempt = self._rounds(median(self._plans_ms)), self._rounds(self._attempt_ms)
        beside = [
            Beside(
                max(self._gains(request, drafts, load), default=0.0),
                0.0 if request.id in self._attempting else planning,
                self._accounts[request.id].needed + attempt,
            )
            for request, drafts in zip(requests, candidates, strict=True)
        ]
        return self._draft_models.limits(name, requests, self._purse, self.cost, beside)

    def _gains(self, request: RequestView, drafts: Sequence[Draft], load: Load) -> list[float]:
        """What each draft is expected to save at its best length, in plain rounds of the request."""
        if not drafts:
            return []
        chains = self.acceptance_of(request.id).survivals(
            request.id, drafts, request.tokens[-1], caution(load.decoding)
        )
        cost = self.cost.costs(max(map(len, chains)) + 1, load.to_recompute)
        return [gain_of(chain, cost, self.cost.per_request)[0] for chain in chains]

    def _attempts(self, requests: Sequence[RequestView]) -> frozenset[int]:
        """The requests that attempt a draft, which is taken from the budget."""
        cost, found = self._rounds(self._attempt_ms), []
        for request in requests:
            if self._accounts[request.id].attempts(cost, self._budget, partial(self._match_length, request)):
                self._budget -= cost
                found.append(request.id)
        return frozenset(found)

    def _rounds(self, ms: float) -> float:
        """That in plain rounds of a request."""
        return ms / max(self.cost.baseline_ms * self.cost.per_request, 1e-9)

    def _match_length(self, request: RequestView) -> int:
        return max([drafter.match_length(request) for drafter in self._drafters], default=0)

    def _cheap_limit(self, load: Load) -> DraftLimit:
        """Below these probabilities no draft of a model-free drafter pays; both leave room for estimates that
        are too low.
        """
        survival = self.cost.row_cost() / self.cost.per_request
        first = self.cost.break_even(MARGIN) if load.decoding == 1 else survival
        return DraftLimit(MAX_DRAFT_TOKENS, 0.5 * survival, 0.8 * first)

    # --- which drafts are verified -----------------------------------------------------------------------

    def choose(
        self, requests: Sequence[RequestView], candidates: Sequence[Sequence[Draft]], load: Load
    ) -> list[Choice]:
        self._note_asked(requests, candidates)
        if not any(candidates):
            self._proposed = {}
            reason = Reason.NOTHING_FOUND if self._attempting else self._reason
            return [Choice(None, reason)] * len(requests)
        best = [
            self._best(request, drafts, load) for request, drafts in zip(requests, candidates, strict=True)
        ]
        self._proposed = {}
        for draft in chain.from_iterable(candidates):
            self._proposed[draft.source] = self._proposed.get(draft.source, 0) + depth_of(draft)
        whole = [sampled(drafts) for drafts in candidates]
        lengths = self._lengths(requests, best, load, taken=sum(len(draft) for draft in whole if draft))
        return [
            Choice(draft, None, Estimate(None, ())) if draft is not None else _choice(it, length)
            for it, length, draft in zip(best, lengths, whole, strict=True)
        ]

    def _note_asked(self, requests: Sequence[RequestView], candidates: Sequence[Sequence[Draft]]) -> None:
        """Learn which costly drafters were asked and had nothing, and what is left of the budget."""
        if self._purse is None:
            return
        for name in self._costly:
            asked = self._draft_models.asked(name)
            for request, drafts in zip(requests, candidates, strict=True):
                if request.id not in asked:
                    continue
                lengths = [depth_of(draft) for draft in drafts if draft.source == name]
                if not lengths:
                    self._draft_models.offered(name, Offer())
                self._purse.drafted(name, request.id, sum(lengths))
        self._budget = self._purse.left

    def _best(self, request: RequestView, drafts: Sequence[Draft], load: Load) -> _Best | None:
        """The candidate with the highest rate alone, or the tree of all."""
        if not drafts:
            return None
        deviations = caution(load.decoding)
        least = max(0.005, 0.25 * self.cost.row_cost() / self.cost.per_request)
        self._chosen_at[request.id] = len(request.tokens)
        chains = self.acceptance_of(request.id).survivals(
            request.id, drafts, request.tokens[-1], deviations, least
        )
        cost = self.cost.costs(max(map(len, chains)) + 1, load.to_recompute)
        for draft, its in zip(drafts, chains, strict=True):
            modesty = draft.confidence[0] / its[0] if draft.confidence and its[0] else None
            if draft.source in self._costly and its:
                risk = self._risk(request, draft, its, load, cost)
                offer = Offer(*gain_of(its, cost, self.cost.per_request), needed(*risk, self._overdraft))
                self._draft_models.offered(draft.source, offer, modesty)
        best: Draft | Tree
        if self._trees and may_merge(request, drafts):
            best = self._merger.merge(request.id, drafts, chains, deviations)
            survival: Sequence[float] = best.survival
            rate = peak_rate(survival, load.decoding, cost, self._later(request, survival))
        else:
            rates = [peak_rate(it, load.decoding, cost, self._later(request, it)) for it in chains]
            rate = max(rates)
            place = rates.index(rate)
            best, survival = drafts[place], chains[place]
        gain = rate * cost[0] / load.decoding
        account, row = self._accounts[request.id], (cost[1] - cost[0]) / self.cost.per_request
        begins_well = row < 1.0 and survival and survival[0] >= min(row, 0.75)
        sources = best.sources if isinstance(best, Tree) else [best.source]
        if (gain > MARGIN or begins_well) and not set(sources) <= set(self._costly):
            account.hit()
        if gain <= MARGIN and load.decoding == 1 and not load.prefill_rows:
            return _Best(best, (), Estimate(gain, chains))
        allowed = self._affordable(request, best, survival, load, cost)
        return _Best(best, survival[:allowed], Estimate(gain, chains))

    def _affordable(
        self,
        request: RequestView,
        best: Draft | Tree,
        survival: Sequence[float],
        load: Load,
        cost: Sequence[float],
    ) -> int:
        """Tokens of the candidate that the request's budget covers after this round's attempt."""
        risk = self._risk(request, best, survival, load, cost)
        if survival:
            self._accounts[request.id].needed = needed(*risk, self._overdraft)
        length = affordable(*risk, self._budget, self._overdraft)
        if length and self.cost.in_passes:  # where the costs of drafts add up; elsewhere see `_lengths`
            self._budget -= risk.bound[length]
        return length

    def _risk(
        self,
        request: RequestView,
        draft: Draft | Tree,
        survival: Sequence[float],
        load: Load,
        cost: Sequence[float],
    ) -> Risk:
        """What verifying a candidate may cost and bring, by its length."""
        share = self.cost.per_request
        later = self._later(request, survival) or [0.0] * (len(survival) + 1)
        most = self.cost.bounds(len(survival) + 1, load.to_recompute)
        extra = [(it - cost[0] + more) / share for it, more in zip(cost, later, strict=False)]
        bound = [(it - cost[0] + more) / share for it, more in zip(most, later, strict=False)]
        paying = draft.paying(extra) if isinstance(draft, Tree) else chain_paying(survival, extra)
        return Risk(paying, extra, bound)

    def _later(self, request: RequestView, survival: Sequence[float]) -> list[float] | None:
        """What the draft costs in later forwards, where accepted tokens are computed again."""
        if not self._recompute.needed:
            return None
        return self._recompute.costs(request.id, survival, self.cost.row_cost())

    def _lengths(
        self, requests: Sequence[RequestView], best: Sequence[_Best | None], load: Load, *, taken: int
    ) -> list[int]:
        """Tokens of each draft, beside `taken` that are verified in any case. Beside a prompt none is longer
        than without it: what more rows cost there is not measured.
        """
        survivals = [it.survival if it else () for it in best]
        if not any(survivals):
            return [0] * len(best)
        later = None
        if self._recompute.needed:
            later = [self._later(it, its) or [] for it, its in zip(requests, survivals, strict=True)]

        def beside(rows: int) -> list[int]:
            passes = self.cost.passes(max(map(len, survivals)) + 1, load.to_recompute + taken + rows)
            if passes is not None:
                return lengths_in_passes(survivals, load.decoding, passes, later, margin=MARGIN)
            count, extra = sum(map(len, survivals)) + 1, load.to_recompute + taken + rows
            cost, bound = self.cost.costs(count, extra), self.cost.bounds(count, extra)
            covered = cost[0] + self.cost.per_request * (self._budget + self._overdraft)
            most = bisect_right(bound, covered, lo=1) - 1
            return draft_lengths(survivals, load.decoding, cost[: most + 1], later)

        lengths = beside(0)
        if load.prefill_rows and any(lengths):
            lengths = list(map(min, lengths, beside(load.prefill_rows)))
        return lengths

    # --- what rounds cost and brought --------------------------------------------------------------------

    def observe(self, rounds: Sequence[Round]) -> None:
        self._unlearnt += rounds
        # A plain round changes no decision but through medians: it can wait. A warm-up has no outcomes.
        if len(self._unlearnt) >= UNLEARNT or any(it.draft_ms or not it.outcomes for it in rounds):
            self._learn_all()

    def _learn_all(self) -> None:
        rounds, self._unlearnt = self._unlearnt, []
        for measured in rounds:
            self._learn(measured)

    def _learn(self, measured: Round) -> None:
        drafts = [len(outcome.draft) for _, outcome in measured.outcomes if outcome.draft]
        load = measured.load
        self.cost.focus(load)
        added = self.cost.learn(measured)
        beside_ms = measured.plan_ms
        if self._attempted:
            self._late_ms = measured.late_ms
        else:
            beside_ms += measured.late_ms
        self._attempted = bool(measured.draft_ms)
        if not measured.outcomes or not self.cost.known:
            return
        share, row_cost = self.cost.per_request, self.cost.row_cost()
        if measured.draft_ms:
            spent = self._attempt_costs(measured)
            self._costly = self._find_costly()
        else:
            beside = beside_ms / max(self.cost.baseline_ms * share * len(measured.outcomes), 1e-9)
            fixed = beside if beside > LARGE else min(beside, RATE / 2)
            spent = dict.fromkeys((request for request, _ in measured.outcomes), fixed)
        plain, one_more = self.cost.costs(2)
        one_more -= plain
        for request, outcome in measured.outcomes:
            recomputed = self._recompute.settle(request, outcome)
            found = self._score(request, outcome) and one_more < share
            account = self._accounts.get(request)
            if account is None:
                continue
            cost = 1.0 + spent[request] + recomputed * row_cost / share
            if outcome.draft:
                cost += added * len(outcome.draft) / sum(drafts) / share
            account.settle(len(outcome.tokens), cost)
            if measured.draft_ms and request in self._attempting:
                source = outcome.draft.source if outcome.draft else ""
                accepted = outcome.accepted and source not in self._costly
                account.hit() if found or accepted else account.miss()

    def _score(self, request: int, outcome: Outcome) -> bool:
        """Learn from what became of a request's candidates. Returns whether one of a model-free drafter
        began right.
        """
        if self._chosen_at.pop(request, None) != outcome.kept:  # preempted, and read again, meanwhile
            self.acceptance_of(request).forget(request)
            self._merger.forget(request)
            return False
        self._merger.score(request, outcome.tokens)
        scores = self.acceptance_of(request).score(request, outcome.tokens)
        return any(right for source, right, _ in scores if source not in self._costly)

    def _attempt_costs(self, measured: Round) -> dict[int, float]:
        """What each request's attempt took beside the forward, in plain rounds. Learns what attempts take."""
        baseline, costs = (
            max(self.cost.baseline_ms, 1e-9),
            dict.fromkeys((it for it, _ in measured.outcomes), 0.0),
        )
        attempting = [request for request in costs if request in self._attempting]
        paying, cheap_ms = set(attempting), measured.plan_ms + self._late_ms
        for name, ms in measured.draft_ms.items():
            tokens, cost = self._proposed.get(name, 0), ms / baseline
            if name not in self._costly:
                cheap_ms += ms
                self._draft_models.measured(name, cost, len(attempting), tokens)
                continue
            asked = self._draft_models.asked(name)
            paid = self._draft_models.measured(name, cost, len(asked), tokens, self.cost.per_request)
            still = [request for request in asked if request in costs]
            for request in still:
                costs[request] += paid / len(asked)
            paying.update([] if attempting else still)
        for request in paying:
            costs[request] += cheap_ms / len(paying) / baseline
        if paying and not attempting:
            self._plans_ms.append((measured.plan_ms + self._late_ms) / len(paying))
        if attempting:
            self._attempts_ms.append(cheap_ms / len(attempting))
            self._attempt_ms = median(self._attempts_ms)
        return {request: cost / self.cost.per_request for request, cost in costs.items()}

    # --- what can be asked of it ---------------------------------------------------------------------------

    def token_ms(self) -> dict[str, float]:
        """Milliseconds that a token of each draft model takes, of those that were measured."""
        baseline = self.cost.baseline_ms
        return {name: cost * baseline for name, cost in self._draft_models.token_costs().items()}

    # --- what is kept between runs -----------------------------------------------------------------------

    def state(self) -> dict[str, object]:
        """What was learnt, as a JSON object for `load_state`; the costs of forwards are in `cost.state()`."""
        self._learn_all()
        return {
            "attempt_ms": round(self._attempt_ms, 4),
            "drafters": self._draft_models.state(),
            "saved": round(self._draft_models.saved, 4),
            "acceptance": self._acceptance_with(self.usual_adapter).state(),
        }

    def load_state(self, state: Mapping[str, object]) -> None:
        """Begin with the `state` of an earlier run. Entries that are not of its form are left out."""
        attempt_ms, drafters = state.get("attempt_ms"), state.get("drafters")
        if isinstance(attempt_ms, float) and 0.0 <= attempt_ms < 1e3:
            self._attempt_ms = attempt_ms
            self._attempts_ms = deque([attempt_ms], ATTEMPTS)
            self._plans_ms = deque([attempt_ms], ATTEMPTS)  # at most
        if isinstance(drafters, Mapping):
            self._draft_models.load_state(
                {str(name): cost for name, cost in drafters.items() if isinstance(cost, float)}
            )
        saved, acceptance = state.get("saved"), state.get("acceptance")
        if isinstance(saved, float) and 0.0 <= saved <= MAX_SAVED:
            self._draft_models.saved = saved
        if isinstance(acceptance, Mapping):
            self._acceptance_with(self.usual_adapter).load_state(acceptance)


def _choice(best: _Best | None, length: int) -> Choice:
    """The choice of `length` tokens of the best candidate, with the reason where it is none."""
    if best is None:
        return Choice(None, Reason.NOTHING_FOUND)
    if length:
        return Choice(best.draft.cut(length), None, best.estimate)
    if (best.estimate.gain or 0.0) <= MARGIN:
        return Choice(None, Reason.NOT_WORTH, best.estimate)
    return Choice(None, Reason.SHARED if best.survival else Reason.TOO_RISKY, best.estimate)
