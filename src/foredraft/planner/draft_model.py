"""Whether a drafter that takes real time, a draft model or a head, is worth its own forwards, and how far.

A model-free drafter takes a small share of a plain forward and is attempted as each request's account allows.
For the others the decision comes before their draft, and after those of the model-free ones: what drafts of
theirs were expected to save lately, beyond what the best draft at hand saves, has to be more than what asking
for one takes. One that does not pay is probed now and then, as far as the accounts allow, so that a change is
found.

They also read the text: the prompt when they are first used, and later what they missed. That is worth it
where the rest of the answer saves more. Reading is in no account; costs are in plain forwards of one request
(V(1)).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median

from foredraft.planner.account import RESERVE
from foredraft.planner.cost import CostCurve
from foredraft.planner.decide import MARGIN, OVERDRAFT
from foredraft.protocols import RequestView
from foredraft.types import MAX_DRAFT_TOKENS, DraftLimit

CHEAP = 0.1
"""Share of a plain forward that an attempt of a model-free drafter takes at most."""

STAYS_CHEAP = 0.3
"""The share above which a drafter that was cheap no longer is: what it takes follows the machine's load."""

FIRST_ACCEPTANCE, FIRST_WEIGHT = 0.6, 4.0
"""Of a token, before any was seen, and the number of tokens that this guess counts for."""

KNOWN = 32
"""Tokens from which its confidence is calibrated; before, its mean acceptance decides."""

PROBE_TOKENS = 4
"""Tokens of a probe, unless they take long."""

MAX_WAIT = 64
"""Rounds between two probes at most."""

CHUNK = 64
"""Tokens that such a drafter reads in one forward."""

SKIPPED = 32
"""Unread tokens up to which it is not behind: an accepted draft of another drafter is as long."""

RECENT = 16
"""Drafts from which it is known what asking for one brings."""

_WINDOW = 15
_NEGLIGIBLE = 0.02


def _rolling(most: int = _WINDOW) -> deque[float]:
    return deque(maxlen=most)


@dataclass(slots=True)
class _Drafter:
    """What is known of one drafter."""

    attempts: deque[float] = field(default_factory=_rolling)
    tokens: deque[float] = field(default_factory=_rolling)
    chunks: deque[tuple[float, int, int]] = field(default_factory=lambda: deque(maxlen=7))
    right: int = 0
    tried: int = 0
    cheap: bool = False
    reads: int = 0
    """The most tokens of a text that it reads before a draft; 0 for all."""
    wait: int = 0
    misses: int = 0
    read: dict[int, int] = field(default_factory=dict)
    """Tokens of each request that it has read."""
    asked: list[tuple[int, int, bool]] = field(default_factory=list)
    """(request, its length, whether the drafter was behind), of this round."""

    offers: deque[tuple[float, int]] = field(default_factory=lambda: deque(maxlen=RECENT))
    """Of recent drafts: the plain rounds that they were expected to save, and at which length."""
    modesty: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT))
    """Of their first tokens: the drafter's own probability as a share of what it is learnt to be worth. With
    the target's noise a token is right far more often than it is likely (sampling/coupled.py).
    """

    def gain(self, spoken: float = 0.0) -> float:
        """What a draft is expected to save beyond one that saves `spoken`."""
        return sum([max(0.0, gain - spoken) for gain, _ in self.offers]) / max(1, len(self.offers))

    @property
    def length(self) -> int:
        """How far to draft: one token further than has paid lately."""
        return min(max([length for _, length in self.offers], default=PROBE_TOKENS) + 1, MAX_DRAFT_TOKENS)

    @property
    def token_cost(self) -> float:
        """Of a drafted token. That it fell is believed at once, that it rose after many rounds: a stall
        passes, and a drafter that is not used could not show that it did.
        """
        if not self.tokens:
            return 0.0
        return min(median(self.tokens), median(list(self.tokens)[-3:]))

    def behind(self, request: RequestView) -> int:
        """Chunks to be read before it can draft for the request; 0 where it nearly follows."""
        unread = len(request.tokens) - self.read.get(request.id, -SKIPPED)
        if self.reads:
            unread = min(unread, self.reads)
        return -(-unread // CHUNK) if unread > SKIPPED else 0

    def reading_cost(self, request: RequestView) -> float:
        """Of what it has to read; 0 before any reading was measured."""
        return self.behind(request) * self.chunk_cost

    @property
    def chunk_cost(self) -> float:
        """Of reading one chunk; 0 before any reading was measured."""
        if not self.chunks:
            return 0.0
        return median(max(0.0, cost - n * self.token_cost) / read for cost, n, read in self.chunks)


def best_length(
    acceptance: float, token_cost: float, curve: CostCurve, requests: int = 1
) -> tuple[int, float]:
    """(tokens to draft for each request, the rate relative to plain decoding) of a drafter that always drafts
    as far; (0, 1) where none pays. Not what `auto` does, which looks at each draft.

    `acceptance`: the share of drafted tokens accepted whose ancestors were; `token_cost`: of drafting one.
    """
    passes = curve.passes(MAX_DRAFT_TOKENS + 1)
    cost = curve.costs(requests * MAX_DRAFT_TOKENS + 1)
    best, length, survival, expected = MARGIN, 0, 1.0, 1.0
    for depth in range(1, MAX_DRAFT_TOKENS + 1):
        survival *= acceptance
        expected += survival
        forward = cost[requests * depth] if passes is None else passes.cost([depth] * requests)
        rate = expected * cost[0] / (forward + requests * depth * token_cost)
        if rate > best:
            best, length = rate, depth
        if survival < _NEGLIGIBLE:
            break
    return (length, best) if length else (0, 1.0)


class DraftModels:
    """All drafters of one engine, by what an attempt of each costs."""

    def __init__(self) -> None:
        self._drafters: dict[str, _Drafter] = {}
        self._answers: deque[int] = deque(maxlen=32)

    def reads(self, name: str, tokens: int) -> None:
        """The drafter reads at most so many tokens of a text before a draft; 0 for all."""
        self._drafters.setdefault(name, _Drafter()).reads = tokens

    def costly(self, name: str) -> bool:
        """Whether an attempt of the drafter takes real time, or was never measured."""
        drafter = self._drafters.get(name)
        return drafter is None or not drafter.cheap

    def limits(
        self,
        name: str,
        requests: Sequence[RequestView],
        budgets: Sequence[float],
        curve: CostCurve,
        beside: Sequence[tuple[float, float]] = (),
    ) -> list[DraftLimit | None]:
        """How far a costly drafter drafts for each request, None for not at all. `budgets`: in rounds;
        `beside`: what the others' drafts for each request save, and the budget of all that a draft for it
        needs to be verified; nothing by default.
        """
        drafter, share = self._drafters.setdefault(name, _Drafter()), curve.per_request
        asking = median(drafter.attempts) / share if drafter.attempts else 0.0
        plain, one_more = curve.costs(2)
        # One more token pays while it is likelier than what it takes to draft and to verify it.
        price = max(drafter.token_cost / share, 1e-9)
        least = min(0.9, price + max(one_more - plain, 0.0) / share)
        least *= min(1.0, median(drafter.modesty)) if drafter.modesty else 0.0
        if drafter.tokens and drafter.tried < KNOWN:
            limits = self._first(drafter, requests, budgets, curve)
        elif not drafter.tokens or 1.0 + drafter.gain() - asking <= MARGIN:
            limits = self._probe(drafter, requests, budgets, share)
        else:
            drafter.wait, drafter.misses = 1, 0
            limits = []
            for i, (request, budget) in enumerate(zip(requests, budgets, strict=True)):
                spoken, needed = beside[i] if beside else (0.0, 0.0)
                rate = 1.0 + drafter.gain(spoken) - asking
                most = min(drafter.length, int((max(budget, 0.0) + OVERDRAFT / 2) / price))
                worth = drafter.reading_cost(request) <= (1.0 - 1.0 / rate) * self._remaining(request)
                asked = rate > MARGIN and most and worth and budget >= 0.0 and needed <= sum(budgets)
                limits.append(DraftLimit(most, least) if asked else None)
        drafter.asked = [
            (request.id, len(request.tokens), drafter.behind(request) > 0)
            for request, limit in zip(requests, limits, strict=True)
            if limit is not None
        ]
        return limits

    def _first(
        self, drafter: _Drafter, requests: Sequence[RequestView], budgets: Sequence[float], curve: CostCurve
    ) -> list[DraftLimit | None]:
        """Before enough is known: as its mean acceptance says."""
        acceptance = (drafter.right + FIRST_ACCEPTANCE * FIRST_WEIGHT) / (drafter.tried + FIRST_WEIGHT)
        length, rate = best_length(acceptance, drafter.token_cost, curve, len(requests))
        if not length:
            return self._probe(drafter, requests, budgets, curve.per_request)
        most = curve.costs(len(requests) * length + 1)
        added = (most[-1] - most[0]) / (len(requests) * length)
        share = (drafter.token_cost + max(added, 0.0)) / curve.per_request
        limits: list[DraftLimit | None] = []
        for request, budget in zip(requests, budgets, strict=True):
            tokens = min(length, int((max(budget, 0.0) + OVERDRAFT / 2) / max(share, 1e-9)))
            worth = drafter.reading_cost(request) <= (1.0 - 1.0 / rate) * self._remaining(request)
            limits.append(DraftLimit(tokens) if tokens and worth and budget >= 0.0 else None)
        return limits

    def scored(self, name: str, right: int, wrong: int) -> None:
        """Of a draft's tokens whose ancestors were right, `right` were right and `wrong` (0 or 1) wrong."""
        drafter = self._drafters.setdefault(name, _Drafter())
        drafter.right += right
        drafter.tried += right + wrong

    def offered(self, name: str, gain: float = 0.0, length: int = 0, modesty: float | None = None) -> None:
        """A draft of the drafter was expected to save `gain` plain rounds at its best length, none if it had
        none. `modesty`: its own probability of the first token as a share of the learnt one.
        """
        drafter = self._drafters.get(name)
        if drafter is None:
            return
        drafter.offers.append((gain, length))
        if modesty is not None:
            drafter.modesty.append(modesty)
        if drafter.attempts and gain > median(drafter.attempts):  # another probe may follow at once
            drafter.wait, drafter.misses = 1, 0

    def _probe(
        self, drafter: _Drafter, requests: Sequence[RequestView], budgets: Sequence[float], share: float
    ) -> list[DraftLimit | None]:
        """Try it for the request that costs least to read, if its account allows and the back-off is over."""
        limits: list[DraftLimit | None] = [None] * len(requests)
        drafter.wait -= 1
        if drafter.wait > 0 or not requests:
            return limits
        costs = [drafter.reading_cost(request) for request in requests]
        i = costs.index(min(costs))
        if drafter.attempts and (costs[i] + median(drafter.attempts)) / share + RESERVE > budgets[i]:
            return limits
        drafter.misses += 1
        drafter.wait = min(2**drafter.misses, MAX_WAIT)
        affordable = int(RESERVE / drafter.token_cost) if drafter.token_cost else PROBE_TOKENS
        limits[i] = DraftLimit(max(1, min(affordable, PROBE_TOKENS)))
        return limits

    def _remaining(self, request: RequestView) -> float:
        """Tokens that are likely to follow: the mean of the answers that were longer than this one is by now,
        else as many again.
        """
        written = len(request.tokens) - request.prompt_length
        longer = [length - written for length in self._answers if length > written]
        expected = sum(longer) / len(longer) if len(longer) > 1 else float(written)
        most = request.params.max_tokens
        return expected if most is None else min(expected, float(max(0, most - written)))

    def asked(self, name: str) -> list[int]:
        """The requests that the drafter, a costly one, drafts for in this round."""
        return [request for request, _, _ in self._drafters[name].asked] if name in self._drafters else []

    def measured(self, name: str, cost: float, requests: int, tokens: int) -> float:
        """An attempt of the drafter for `requests` requests cost `cost` in all, for `tokens` draft tokens.

        Returns what the accounts pay of that: all but reading.
        """
        drafter = self._drafters.setdefault(name, _Drafter())
        asked, drafter.asked = drafter.asked, []
        chunks = 0
        for request, length, behind in asked:
            if behind:
                unread = length - drafter.read.get(request, 0)
                chunks += max(1, -(-(min(unread, drafter.reads) if drafter.reads else unread) // CHUNK))
            drafter.read[request] = length
        if chunks and cost > CHEAP:
            drafting = tokens * drafter.token_cost
            reading = drafter.chunk_cost * chunks if drafter.chunks else cost - drafting
            drafter.chunks.append((cost, tokens, chunks))
            return max(drafting, cost - max(reading, 0.0))
        drafter.attempts.append(cost / max(requests, 1))
        if tokens:
            drafter.tokens.append(cost / tokens)
        drafter.cheap = median(drafter.attempts) <= (STAYS_CHEAP if drafter.cheap else CHEAP)
        return cost

    def stop(self, request: RequestView) -> None:
        """The request is over."""
        self._answers.append(len(request.tokens) - request.prompt_length)
        for drafter in self._drafters.values():
            drafter.read.pop(request.id, None)

    def state(self) -> dict[str, float]:
        """The cost of an attempt of each cheap drafter, for `load_state`."""
        return {name: median(it.attempts) for name, it in self._drafters.items() if it.cheap}

    def load_state(self, costs: dict[str, float]) -> None:
        """Begin with the costs of an earlier run."""
        for name, cost in costs.items():
            if 0.0 <= cost <= STAYS_CHEAP:
                self._drafters[name] = _Drafter(attempts=deque([cost], _WINDOW), cheap=True)
