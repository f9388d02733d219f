"""`auto`: draft where, and as far as, this run's own measurements say that it pays.

The rate of a round is (tokens it is expected to commit) ÷ (time it is expected to take). For every round
all candidates and lengths are compared with not drafting at all, with survival from `calibration` and V(n)
from `cost`; drafting must win by a margin with a cautious estimate of survival, and no request risks more
than its stake (`stake`). Who is asked for a draft at all is `asking`'s question.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from foredraft.planner.asking import Asking
from foredraft.planner.attention import DEAR, NOBODY, Attention
from foredraft.planner.cost import CostCurve
from foredraft.planner.decision import Estimate
from foredraft.planner.hints import Hints
from foredraft.planner.income import INCOME
from foredraft.planner.lengths import best_lengths, lengths_in_passes
from foredraft.planner.merge import Merger, Tree, may_merge
from foredraft.planner.overhead import Overhead
from foredraft.planner.prices import Prices
from foredraft.planner.question import Question
from foredraft.planner.replay import Replay
from foredraft.planner.rest import Rest
from foredraft.planner.stake import Stakes
from foredraft.planner.tables.beta import caution
from foredraft.planner.tables.calibration import Survival, depth_of, sampled
from foredraft.planner.tables.reliability import ReliabilityTable
from foredraft.protocols import RequestView
from foredraft.types import Draft, DraftLimit, Load, Round

MARGIN = 1.03
"""How much better than plain decoding the cautious estimate must be."""

_UNKNOWN: Mapping[str, float] = MappingProxyType({})
_NOTHING = Estimate(0.0, pays=False, survival=(), allowed=0)


class AdaptivePlanner:
    """The planner of `auto`. `trees`, `ragged`: of the target's `Capabilities`; trees may be merged."""

    def __init__(self, replay: Replay | None = None, *, trees: bool = False, ragged: bool = True) -> None:
        self._replay = replay or Replay()
        self.trees = trees
        self._merger = Merger()
        self._survival = Survival()
        self._curve = CostCurve(ragged=ragged)
        self._asking = Asking(self._curve, MARGIN)
        self._attention = Attention()
        self._overhead = Overhead()
        self._question = Question(self._curve, self._asking, self._overhead)
        self._stakes = Stakes()
        self._hints = Hints(self._curve, self._stakes, self._survival.lexical)
        self._names: Sequence[str] = ()
        self._drafted: dict[str, int] = {}
        self._prices = Prices(self._curve, self._replay)
        self._together: Sequence[int] = ()
        self._open: set[int] = set()
        self._found = False
        self._drafting = False
        self._rest = Rest()
        self._resting_next = False
        self._promising: Mapping[int, float] = NOBODY
        self.measuring = False
        """Whether the last round was to go without drafts, to measure plain decoding."""
        self.estimates: Sequence[Estimate] = ()
        """What the last `choose` expected, request by request; empty if there was none since `limits`."""

    def recall(
        self,
        curve: Mapping[int, Mapping[int, float]],
        learnt: Mapping[str, object],
        *,
        resize: float | None = None,
        asking: Mapping[str, float] = _UNKNOWN,
        choosing_ms: float | None = None,
    ) -> None:
        """Begin with what an earlier run has learnt: a stored curve and `resize`, what asking took, in plain
        rounds, and choosing, and `knowledge`.
        """
        self._curve.seed(curve, resize)
        self._asking.recall(asking)
        if choosing_ms is not None:
            self._overhead.recall(choosing_ms)
        self._survival.recall(learnt)
        answers = learnt.get("answers")
        if isinstance(answers, list):
            self._stakes.restore(answers)

    def curve(self) -> Mapping[int, Mapping[int, float]]:
        """V(n) as it is known now: milliseconds by context depth and rows. Empty before anything was seen."""
        self._catch_up()
        return self._curve.curve() if self._curve.known else {}

    @property
    def resize(self) -> float:
        """What a forward of another size than the one before it takes longer, in V(1)."""
        return self._curve.resize

    @property
    def rounds(self) -> int:
        """Rounds of decoding that were measured."""
        self._catch_up()
        return self._curve.rounds

    @property
    def asking_ms(self) -> Mapping[str, float]:
        """What asking takes for one request, in milliseconds: of each drafter that costs next to nothing."""
        self._catch_up()
        return self._asking.free_ms

    @property
    def choosing_ms(self) -> float:
        """What a round in which drafters are asked takes beyond that, in milliseconds for one request."""
        return self._overhead.ms(1)

    @property
    def resting_share(self) -> float:
        """What a round in which nobody is asked takes before its forward: the share of that forward."""
        return self._overhead.resting_share()

    @property
    def reliability(self) -> ReliabilityTable:
        """How good the estimates were that drafts were chosen by."""
        return self._survival.reliability

    def knowledge(self) -> dict[str, object]:
        """What else was learnt, as a JSON object."""
        return {**self._survival.knowledge(), "answers": self._stakes.export()}

    def start(self, request: RequestView, drafters: Sequence[str] = ()) -> None:
        self._stakes.start(request.id, request.params.max_tokens)
        self._open.add(request.id)
        if drafters and len(self._open) == 1:
            self._rest_first(request, drafters)
        self._hints.start(request)

    def _rest_first(self, request: RequestView, drafters: Sequence[str]) -> None:
        """When an answer that begins alone can first pay for a question, seen before its prompt is read."""
        self._catch_up()
        self._names, load = drafters, Load(1, 0, len(request.tokens))
        self._curve.focus(load.depth, 1)
        if self._curve.known and not self._curve.stale:
            self._attention.begin(request.id)
            self._weigh(load)
            self._doze([request.id], load, self._curve.rounds)

    def stop(self, request: RequestView) -> None:
        self._catch_up()
        self._open.discard(request.id)
        self._survival.forget(request.id)
        self._merger.forget(request.id)
        self._stakes.forget(request.id, len(request.tokens) - request.prompt_length)
        self._asking.stop(request)
        self._hints.forget(request.id)
        self._attention.forget(request.id)
        self._replay.forget(request.id)

    def rests(self, requests: Sequence[RequestView], load: Load) -> bool:
        together, gone, able = len(requests), self._rest.gone, requests
        if together > 1:  # one by itself is seldom promising: who can pay is not looked up before
            able = [it for it in requests if self._attention.solvent(it.id, together, gone)]
        likely = self._hints.likely(able)
        if (
            likely is not None
            and self._attention.solvent(likely.id, together, gone, self._hints.chance)
            and self._hints.promising(likely, gone)
        ):
            self._promising = {likely.id: self._hints.chance}
            self._rest.interrupt()
            return False
        return self._rest.goes_on(requests, load)

    def limits(
        self, requests: Sequence[RequestView], drafters: Sequence[str], load: Load
    ) -> Mapping[str, Sequence[DraftLimit | None]]:
        self.estimates = ()
        self._names, self._resting_next = drafters, False
        promising, self._promising = self._promising, NOBODY
        self._catch_up()
        self._curve.focus(load.depth, load.decoding)
        self.measuring = not self._curve.known or self._curve.stale
        if self.measuring:
            return {}
        turns = self._weigh(load)
        ids = [request.id for request in requests]
        awake = self._attention.tick(ids, turns, promising)
        if not awake and self._asking.asleep(drafters):
            self._asking.nobody()
            self._doze(ids, load, self._curve.rounds + 1)
            return {}
        return self._asking.limits(requests, drafters, load, awake, promising)

    def _weigh(self, load: Load) -> float:
        """What a question takes, in turns of one request; hints and stakes go by what is measured now."""
        cost = self._question.cost(self._names, load)
        turns = cost / self._curve.turn(load.decoding)
        dear = load.decoding == 1 and turns > DEAR
        self._stakes.spend(self._overhead.resting_share())
        if cost > INCOME:
            self._hints.weigh(cost, load.decoding, dear=dear)
        else:
            self._hints.rest()
        return turns

    def choose(
        self, requests: Sequence[RequestView], candidates: Sequence[Sequence[Draft]], load: Load
    ) -> list[Draft | None]:
        chosen: list[Draft | Tree | None] = []
        survivals: list[Sequence[float]] = []
        estimates: list[Estimate] = []
        self._drafted = {}
        self._prices.renew()
        self._together = [request.id for request in requests]
        for request, drafts in zip(requests, candidates, strict=True):
            self._survival.remember(request.id, drafts, request.tokens[-1])
            for draft in drafts:
                self._drafted[draft.source] = self._drafted.get(draft.source, 0) + depth_of(draft)
            best: Draft | Tree | None = sampled(drafts)
            survival: Sequence[float] = ()
            if best is not None:
                self._attention.note(request.id, 1.0, 1.0)
                estimates.append(Estimate(None, pays=True, survival=(), allowed=len(best)))
            else:
                best, survival, estimate = self._best(request, drafts, load)
                estimates.append(estimate)
            chosen.append(best)
            survivals.append(survival)
        self.estimates = estimates
        whole = [
            len(draft) if isinstance(draft, Draft) and draft.probs is not None else 0 for draft in chosen
        ]
        lengths = self._lengths(self._together, survivals, load, taken=sum(whole))
        self._found = any(it is not None for it in chosen) if self._asking.asked else self._found
        self._drafting = any(lengths) or any(whole)
        if self._drafting:
            self._question.renew()
        return [
            draft.cut(max(length, all_of_it)) if draft and length + all_of_it else None
            for draft, length, all_of_it in zip(chosen, lengths, whole, strict=True)
        ]

    def _best(
        self, request: RequestView, drafts: Sequence[Draft], load: Load
    ) -> tuple[Draft | Tree | None, Sequence[float], Estimate]:
        """The candidate that could reach the best rate alone, or the tree of all, which every chain is a part
        of; the survival of its tokens, as many as the request's stake allows; and what was expected.
        """
        if not drafts:
            return None, (), _NOTHING
        best: Draft | Tree | None = None
        survival: Sequence[float] = ()
        highest = 0.0
        careful = caution(load.decoding)
        chains = self._survival.estimates(drafts, careful, request.id, self._asking.hopeless)
        rows = load.decoding + load.owed
        costs = self._prices.of(rows, max(map(len, chains)) + 1)
        if self.trees and may_merge(request, drafts) and self._prices.any_tree_could_pay(chains, rows):
            best = self._merger.merge(request.id, drafts, chains, careful)
            highest, size = self._prices.peak_rate(request.id, best.survival, load, costs)
            # Who decodes alone has no use for more nodes; in company V(n) may favour another size.
            survival = best.survival[:size] if load.decoding == 1 else best.survival
        else:
            for draft, chain in zip(drafts, chains, strict=True):
                rate, _ = self._prices.peak_rate(request.id, chain, load, costs)
                if rate > highest:
                    best, survival, highest = draft, chain, rate
        plain = costs[0]
        gain = highest * plain / load.decoding
        row_cost = (costs[1] - plain) / self._curve.turn(load.decoding)
        self._attention.note(request.id, survival[0] if survival else 0.0, row_cost, pays=gain > MARGIN)
        alone = load.decoding == 1 and not load.prefill_rows
        if alone and highest <= MARGIN / plain:  # `best_lengths` would say the same, whatever the stake
            return best, (), Estimate(gain, gain > MARGIN, chains, 0)
        extra = self._prices.extra_rounds(request.id, survival, load)
        if isinstance(best, Tree):  # which is never right to its end
            pays = best.paying(extra[1 : len(survival) + 1])
            allowed = self._stakes.cut(request.id, pays, extra, self._together, pays)
        else:
            allowed = self._stakes.cut(request.id, survival, extra, self._together)
        return best, survival[:allowed], Estimate(gain, gain > MARGIN, chains, allowed)

    def _lengths(
        self, requests: Sequence[int], survivals: Sequence[Sequence[float]], load: Load, *, taken: int = 0
    ) -> list[int]:
        """`best_lengths` beside `taken` draft tokens that are verified in any case. Beside a prompt none is
        longer than without: what so many rows more cost there was never measured.
        """
        if not any(survivals):
            return [0] * len(survivals)
        if len(survivals) == 1 and not (load.prefill_rows or self._curve.in_passes):
            costs = self._prices.of(1 + load.owed, len(survivals[0]) + 1)
            rate, size = self._prices.peak_rate(requests[0], survivals[0], load, costs)
            return [size if rate > MARGIN / costs[0] else 0]
        prices = [
            self._replay.prices(request, chain, self._curve.ratio)
            for request, chain in zip(requests, survivals, strict=True)
        ]
        count = sum(map(len, survivals)) + 1

        def beside(rows: int) -> list[int]:
            plain = load.decoding + load.owed + taken + rows
            if self._curve.in_passes:
                shapes = self._curve.shapes(plain, max(map(len, survivals), default=0) + 1)
                return lengths_in_passes(survivals, load.decoding, shapes, prices, margin=MARGIN)
            costs = self._prices.of(plain, count)
            return best_lengths(survivals, load.decoding, costs, prices, margin=MARGIN)

        lengths = beside(0)
        if load.prefill_rows and any(lengths):
            return list(map(min, lengths, beside(load.prefill_rows)))
        return lengths

    def _catch_up(self) -> None:
        """The rounds of a rest went by."""
        gone = self._rest.end()
        if gone:
            self._attention.rested(self._rest.requests, gone)

    def observe(self, measured: Round) -> None:
        self._catch_up()
        drafts = [len(outcome.draft) for _, outcome in measured.outcomes if outcome.draft]
        if not drafts and not measured.draft_ms:
            self._observe_plain(measured)
            return
        drafted, plain = sum(drafts), len(measured.outcomes)
        extra = self._curve.beyond_plain(plain, drafts) / self._curve.ratio(plain) if drafts else 0.0
        self._curve.learn(measured, drafts)
        for request, outcome in measured.outcomes:
            if self.trees:
                self._merger.score(request, outcome.tokens)
            for score in self._survival.score(request, outcome):
                self._asking.scored(score.source, score.right, score.wrong)
                if score.right:
                    self._attention.wake(request)
                    self._rest.interrupt()
                    self._resting_next = False
        self._settle(measured, drafted, extra)
        self._overhead.learn(measured)
        self._asking.observe(measured, self._drafted)
        stay = plain == measured.load.decoding  # what was weighed is for as many as there were
        if stay and not self._resting_next and (not drafted or plain == 1):
            self._doze([request for request, _ in measured.outcomes], measured.load, self._curve.rounds)

    def _observe_plain(self, measured: Round) -> None:
        """As `observe`, of a round in which nobody was asked: there is no candidate to be scored."""
        self._curve.learn(measured)
        for request, outcome in measured.outcomes:
            self._replay.settle(request, outcome)
            self._stakes.settle(request, len(outcome.tokens), 1.0)
        self._overhead.learn(measured)
        self._asking.passed(measured.forward_ms + measured.sample_ms, len(measured.outcomes))

    def rests_next(self, requests: Sequence[RequestView], load: Load) -> bool:
        self._question.hold(self._names, load)
        self._resting_next = self._doze([request.id for request in requests], load, self._curve.rounds + 1)
        return self._resting_next

    def _doze(self, ids: Sequence[int], load: Load, first: int) -> bool:
        """Rest from round number `first` on, as long as nobody would be asked at what it takes now: finding
        that out in the next round takes half a question. Whether there is such a round.
        """
        cost = self._question.cost(self._names, load)
        turns = cost / self._curve.turn(load.decoding)
        rounds = self._attention.rest(ids, turns, self._hints.lasts(first))
        return rounds > 0 and self._asking.asleep(self._names) and self._rest.begin(ids, load, rounds)

    def _settle(self, measured: Round, drafted: int, extra: float) -> None:
        """The drafts share what the round took longer than a plain one for all, `extra` of such rounds: it is
        taken from the stakes of their requests, and counts against what they brought.
        """
        requests = len(measured.outcomes)
        turn = self._curve.turn(requests) if drafted else 1.0
        for request, outcome in measured.outcomes:
            owed = self._replay.settle(request, outcome)
            later = owed * self._replay.row(self._curve.ratio) / turn if owed else 0.0
            share = len(outcome.draft) / drafted if outcome.draft else 0.0
            cost = 1.0 + requests * extra * share + later
            spent = self._attention.saved(request, len(outcome.tokens) - cost) if outcome.draft else 0.0
            self._stakes.settle(request, len(outcome.tokens), cost + spent)
            if outcome.draft is None:
                continue
            self._hints.drafted(request)
            sources = outcome.draft.source.split("+")
            for source in sources:
                self._asking.earned(source, (len(outcome.tokens) - cost) / len(sources))

    def reason(self) -> str | None:
        if not self._curve.known:
            return "the cost of plain decoding is measured first"
        if self._drafting:
            return None
        if self._asking.holding_back:
            return "drafting takes longer here than it is expected to save"
        if not self._found:
            return "no drafter finds anything to propose here"
        return "the drafts found are not expected to pay for their verification"
