"""Whether a drafter that takes real time, a draft model or a head, is worth its own forwards, and how far.

A model-free drafter takes a small share of a plain forward and is attempted as each request's account allows.
For the others the decision comes before their draft, and after those of the model-free ones: what their
recent drafts were expected to save, beyond what the best draft at hand saves, has to be more than what asking
for one takes. One that does not pay is probed now and then, so that a change is found. All of that is paid
from the round's budget (`purse`).

They also read the text: the prompt when they are first used, and later what they missed. That is worth it
where the rest of the answer saves more, and is paid from what requests that are over left of their budgets,
then from the request's own. Costs are in plain forwards of one request (V(1)).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import NamedTuple

from foredraft.planner.account import RESERVE
from foredraft.planner.cost import CostCurve
from foredraft.planner.decide import MARGIN
from foredraft.planner.purse import Purse
from foredraft.protocols import Proposer, RequestView
from foredraft.types import MAX_DRAFT_TOKENS, DraftLimit

CHEAP = 0.1
"""Share of a plain forward that an attempt of a model-free drafter takes at most."""

STAYS_CHEAP = 0.3
"""The share above which a drafter that was cheap no longer is: what it takes follows the machine's load."""

PATIENCE = 8
"""Probes of a new drafter before they become rarer."""

PROBE_TOKENS = 4
"""Tokens of a probe."""

MAX_WAIT = 256
"""Rounds between two probes at most, for each plain round that one takes: so they take 0.4 % of the time."""

REFUSED = 8
"""Rounds after which a probe is tried again that no budget covered."""

CHUNK = 64
"""Tokens that such a drafter reads in one forward."""

SKIPPED = 32
"""Unread tokens up to which it is not behind: an accepted draft of another drafter is as long."""

RECENT = 16
"""Drafts from which it is known what asking for one brings."""

FIRST_SAVED, MAX_SAVED = 8.0, 64.0
"""Plain rounds that are there for reading at first, and at most: what reading may cost a request beyond its
own budget."""

SAVED = 0.5
"""Share of what a request won, or did not lose though it might have, that is saved up for reading."""

_WINDOW = 15


class Offer(NamedTuple):
    """What a draft was expected to be worth: the plain rounds that it saves at its best length, that length,
    and the least budget that verifying any of it takes.
    """

    gain: float = 0.0
    length: int = 0
    needed: float = 0.0


class Beside(NamedTuple):
    """For a request, in plain rounds, before a costly drafter is asked: what the others' drafts are expected
    to save, what planning takes if no attempt is made anyway, and the budget that the next attempt of the
    others needs.
    """

    saving: float = 0.0
    planning: float = 0.0
    needed: float = 0.0


def _rolling(most: int = _WINDOW) -> deque[float]:
    return deque(maxlen=most)


@dataclass(slots=True)
class _Worth:
    """What the drafts of one drafter are worth, with one of `Load.adapters`."""

    wait: int = 0
    misses: int = 0
    offers: deque[Offer] = field(default_factory=lambda: deque(maxlen=RECENT))
    modesty: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT))
    """Of their first tokens: the drafter's own probability as a share of what it is learnt to be worth. With
    the target's noise a token is right far more often than it is likely (sampling/coupled.py).
    """


@dataclass(slots=True)
class _Drafter:
    """What is known of one drafter."""

    attempts: deque[float] = field(default_factory=_rolling)
    tokens: deque[float] = field(default_factory=_rolling)
    chunks: deque[tuple[float, int, int]] = field(default_factory=lambda: deque(maxlen=7))
    cheap: bool = False
    size: float = 0.0
    """Its parameters as a share of the target's: what a token takes, before any was measured."""
    at_once: bool = False
    """Whether a draft takes the same however many tokens it has."""
    reads: int = 0
    """The most tokens of a text that it reads before a draft; 0 for all."""
    worths: dict[tuple[str, ...], _Worth] = field(default_factory=dict)
    adapters: tuple[str, ...] = ()
    """With which it drafts in this round (`Load.adapters`)."""
    read: dict[int, int] = field(default_factory=dict)
    """Tokens of each request that it has read."""
    asked: list[tuple[int, int, bool]] = field(default_factory=list)
    """(request, its length, whether the drafter was behind), of this round."""

    @property
    def worth(self) -> _Worth:
        return self.worths.setdefault(self.adapters, _Worth())

    def gain(self, spoken: float = 0.0) -> float:
        """What a draft is expected to save beyond one that saves `spoken`."""
        return sum([max(0.0, it.gain - spoken) for it in self.worth.offers]) / max(1, len(self.worth.offers))

    @property
    def needed(self) -> float:
        """The budget that verifying a draft that pays usually takes."""
        paying = [it.needed for it in self.worth.offers if it.gain > 0.0]
        return median(paying) if paying else 0.0

    @property
    def length(self) -> int:
        """How far to draft: one token further than has paid lately."""
        return min(max([it.length for it in self.worth.offers], default=PROBE_TOKENS) + 1, MAX_DRAFT_TOKENS)

    @property
    def token_cost(self) -> float:
        """Of a drafted token. That it fell is believed at once, that it rose after many rounds: a stall
        passes, and a drafter that is not used could not show that it did.
        """
        if self.at_once:
            return 0.0
        if not self.tokens:
            return self.size
        return min(median(self.tokens), median(list(self.tokens)[-3:]))

    @property
    def block_cost(self) -> float:
        """Of a draft, beside its tokens."""
        if not self.at_once:
            return 0.0
        return median(self.attempts) if self.attempts else self.size

    @property
    def priced(self) -> bool:
        """Whether it is known, or can be guessed, what its tokens take: not before the first attempt of a
        model-free drafter.
        """
        return bool(self.attempts or self.size)

    def least(self, price: float, curve: CostCurve) -> float:
        """The probability below which a draft ends: one more token pays while it is likelier than what it
        takes to draft and to verify it, a row.
        """
        plain, one_more = curve.costs(2)
        least = min(0.9, price + max(one_more - plain, 0.0) / curve.per_request)
        return least * min(1.0, median(self.worth.modesty)) if self.worth.modesty else 0.0

    def back_off(self, cost: float) -> None:
        """It is probed, which takes `cost` plain rounds: the next probe comes later."""
        self.worth.misses += 1
        self.worth.wait = int(min(2 ** max(self.worth.misses - PATIENCE, 0), MAX_WAIT) * cost)

    def found(self) -> None:
        """It pays: should it no longer, another probe may follow at once."""
        self.worth.wait, self.worth.misses = 0, min(self.worth.misses, PATIENCE)

    def behind(self, request: RequestView) -> int:
        """Chunks to be read before it can draft for the request; 0 where it nearly follows."""
        unread = len(request.tokens) - self.read.get(request.id, -SKIPPED)
        if self.reads:
            unread = min(unread, self.reads)
        return -(-unread // CHUNK) if unread > SKIPPED else 0

    def chunk_cost(self, target: float) -> float:
        """Of reading one chunk, which takes the target `target`."""
        if not self.chunks:
            return self.size * target
        return median(max(0.0, cost - n * self.token_cost) / read for cost, n, read in self.chunks)


class DraftModels:
    """All drafters of one engine, by what an attempt of each costs. `saved`: plain rounds that are there for
    reading, left by requests that are over.
    """

    def __init__(self) -> None:
        self.saved = FIRST_SAVED
        self._drafters: dict[str, _Drafter] = {}
        self._answers: deque[int] = deque(maxlen=32)

    def add(self, proposer: Proposer) -> None:
        """A drafter that takes real time."""
        drafter = self._drafters.setdefault(proposer.name, _Drafter())
        drafter.size, drafter.reads = proposer.size, proposer.reads
        drafter.at_once = proposer.at_once

    def focus(self, adapters: tuple[str, ...]) -> None:
        """The round that begins has these `Load.adapters`: what a draft is worth depends on them."""
        for drafter in self._drafters.values():
            drafter.adapters = adapters

    def costly(self, name: str) -> bool:
        """Whether an attempt of the drafter takes real time, or was never measured."""
        drafter = self._drafters.get(name)
        return drafter is None or not drafter.cheap

    def resting(self, name: str) -> bool:
        """Whether the drafter is not asked in the round that begins, whatever there is to gain: it does not
        pay, and its next probe is not due. Called once in a round.
        """
        drafter = self._drafters.get(name)
        if drafter is None or not drafter.worth.wait:
            return False
        drafter.worth.wait -= 1
        return drafter.worth.wait > 0

    def limits(
        self,
        name: str,
        requests: Sequence[RequestView],
        purse: Purse,
        curve: CostCurve,
        beside: Sequence[Beside],
    ) -> list[DraftLimit | None]:
        """How far a costly drafter drafts for each request, None for not at all, as `purse` grants it."""
        drafter, share = self._drafters.setdefault(name, _Drafter()), curve.per_request
        price, reading = drafter.token_cost / share, self._reading(drafter, requests, curve)
        wanted, least = self._wanted(drafter, requests, curve, beside, reading), 0.0
        probing = wanted is None
        if wanted is None:
            wanted = self._probe(drafter, price, reading)
        else:
            least = drafter.least(price, curve)
        limits: list[DraftLimit | None] = []
        for request, tokens, read, it in zip(requests, wanted, reading, beside, strict=True):
            fixed = it.planning + drafter.block_cost / share
            leaving = RESERVE + it.needed if probing else drafter.needed
            if not drafter.priced:
                fixed = leaving = 0.0
            granted = purse.grant(name, request, tokens, price, fixed=fixed, reading=read, leaving=leaving)
            limits.append(DraftLimit(granted, least) if granted else None)
            if granted and probing:
                drafter.back_off(fixed + granted * price + read)
        if probing and not any(limits):
            drafter.worth.wait = REFUSED
        drafter.asked = [
            (request.id, len(request.tokens), drafter.behind(request) > 0)
            for request, limit in zip(requests, limits, strict=True)
            if limit is not None
        ]
        return limits

    def _reading(self, drafter: _Drafter, requests: Sequence[RequestView], curve: CostCurve) -> list[float]:
        """Plain rounds that reading what the drafter lacks of each text takes."""
        behind = [drafter.behind(request) for request in requests]
        if not any(behind):
            return [0.0] * len(behind)
        chunk = drafter.chunk_cost(0.0 if drafter.chunks else curve.costs(CHUNK)[-1])
        return [chunks * chunk / curve.per_request for chunks in behind]

    def _wanted(
        self,
        drafter: _Drafter,
        requests: Sequence[RequestView],
        curve: CostCurve,
        beside: Sequence[Beside],
        reading: Sequence[float],
    ) -> list[int] | None:
        """How many tokens pay for each request; None if the drafter does not pay, or was never measured."""
        if not drafter.tokens:
            return None
        asking = median(drafter.attempts) / curve.per_request
        if 1.0 + drafter.gain() - asking <= MARGIN:
            return None
        drafter.found()
        wanted = []
        for request, read, it in zip(requests, reading, beside, strict=True):
            rate = 1.0 + drafter.gain(it.saving) - asking - it.planning
            pays = rate > MARGIN and read <= (1.0 - 1.0 / rate) * self._remaining(request)
            wanted.append(drafter.length if pays else 0)
        return wanted

    def _probe(self, drafter: _Drafter, price: float, reading: Sequence[float]) -> list[int]:
        """Tokens for the request that costs least to read: one token before any was measured."""
        wanted = [0] * len(reading)
        if reading:
            affordable = int(RESERVE / price) if price else PROBE_TOKENS
            most = max(1, min(affordable, PROBE_TOKENS)) if drafter.tokens or not price else 1
            wanted[reading.index(min(reading))] = most
        return wanted

    def offered(self, name: str, offer: Offer, modesty: float | None = None) -> None:
        """The drafter was asked, and offered that. `modesty`: its own probability of the first token as a
        share of the learnt one.
        """
        drafter = self._drafters.get(name)
        if drafter is None:
            return
        drafter.worth.offers.append(offer)
        if modesty is not None:
            drafter.worth.modesty.append(modesty)

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

    def token_costs(self) -> dict[str, float]:
        """What a token of each draft model takes, in V(1), of those that were measured."""
        models = {name: it for name, it in self._drafters.items() if it.size and not it.at_once}
        return {name: it.token_cost for name, it in models.items() if it.tokens}

    def measured(self, name: str, cost: float, requests: int, tokens: int, share: float = 1.0) -> float:
        """An attempt of the drafter for `requests` requests cost `cost` in all, for `tokens` draft tokens.
        `share`: of a request, in a plain forward.

        Returns what the accounts pay of that: all but reading that was saved up for.
        """
        drafter = self._drafters.setdefault(name, _Drafter())
        asked, drafter.asked = drafter.asked, []
        unread = [length - drafter.read.get(request, 0) for request, length, behind in asked if behind]
        drafter.read |= {request: length for request, length, _ in asked}
        reading = max(0.0, cost - tokens * drafter.token_cost) if unread else 0.0
        if unread and (min(unread) >= CHUNK or (drafter.reads and drafter.reads < CHUNK)):
            chunks = [-(-(min(it, drafter.reads) if drafter.reads else it) // CHUNK) for it in unread]
            drafter.chunks.append((cost, tokens, sum(chunks)))
        if reading and cost > CHEAP:
            saved = min(self.saved, min(reading, cost) / share)
            self.saved -= saved
            return cost - saved * share
        drafter.attempts.append(cost / max(requests, 1))
        if tokens:
            drafter.tokens.append(cost / tokens)
        drafter.cheap = median(drafter.attempts) <= (STAYS_CHEAP if drafter.cheap else CHEAP)
        return cost

    def stop(self, request: RequestView, left: float) -> None:
        """The request is over, and left this number of the plain rounds that it won or might have lost."""
        self.saved = min(self.saved + SAVED * left, MAX_SAVED)
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
