"""How much a request may lose: what it has won so far, and a little.

A chance estimate is right on average and wrong on some prompts; a short answer has no time to make up for a
few bad drafts. So every request has a stake, in units of a plain round: it starts with nothing, grows by a
small share of a round with every token and by whatever drafting wins, less what asking may spend of it
(`attention`), shrinks by what its drafts cost all requests, and no draft may risk more. With what asking may
take besides that bounds the slowdown of any request, whatever the estimates say. Where forwards are so short
that what a round without a question takes beside its forward counts, that comes off what drafts may lose
(`Stakes.spend`).

A copy at the beginning of a long answer would wait for its stake. So drafts that look certain get an advance
on what the answer has still to come: of the earlier answers that were longer than this one is by now, the
shortest says how much that is.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Sequence

SHARE = 0.016
"""Share of its time that a request may lose by drafts in the long run, and by what rounds take besides."""

LEAST = SHARE / 2
"""What is left of it for drafts in any case."""

DOUBTED = 4
"""Power of a chance: a draft that pays for its rows with chance P is taken to be lost with 1 - P^4, as
estimates near 1 are less certain than they say."""

ADVANCE = 0.03
"""Share of an answer that a request may lose besides, by drafts that look certain: of one as short as any
earlier answer that was longer than it is by now."""

CERTAIN = 6
"""Power of survival: a draft that is right to its end with chance S may use S^6 of the advance."""

FIRST = 0.2
"""Advance in plain rounds while no answer was seen, of one that may be long enough for it."""

KEPT = 32
"""Answers of which the shortest counts."""

DOUBT = 3.0
"""Longer answers that must have been seen for half of that: this one may be shorter."""

MOST = 32.0
"""What was won is not saved up without limit: text that changes must not be paid for by text long past."""


LEFT = 0.2
"""Plain rounds up to which what a request has left over fills up the stakes of those it decoded with: their
company has been won for by its drafts, and they were held up by them."""


class Stakes:
    """The stakes of all requests."""

    def __init__(self) -> None:
        self._stakes: dict[int, float] = {}
        self._written: dict[int, int] = {}
        self._longest: dict[int, int] = {}
        self._lengths: deque[int] = deque(maxlen=KEPT)
        self._sorted: list[int] = []
        self.share = SHARE
        """Share of its time by which a stake grows."""

    def start(self, request: int, most: int | None = None) -> None:
        """A request begins, which will write at most `most` tokens."""
        self._written[request] = 1
        if most is not None:
            self._longest[request] = most

    def spend(self, share: float) -> None:
        """Every round takes this share of its time beside its forward, drafts or not: from now on drafts may
        lose so much less.
        """
        self.share = max(LEAST, SHARE - share)

    def export(self) -> list[int]:
        """How long the last answers were, in tokens, the oldest first."""
        return list(self._lengths)

    def restore(self, lengths: Sequence[object]) -> None:
        """Begin with the lengths of an earlier run. What does not look like one is left out."""
        self._lengths.clear()
        self._sorted = []
        for length in lengths:
            if isinstance(length, int) and not isinstance(length, bool) and length > 0:
                self._ended(length)

    def _ended(self, length: int) -> None:
        """An answer was so long."""
        self._lengths.append(length)
        self._sorted = sorted(self._lengths)

    def cut(
        self,
        request: int,
        survivals: Sequence[float],
        extra: Sequence[float],
        together: Sequence[int] = (),
        paying: Sequence[float] | None = None,
        *,
        rested: int = 0,
    ) -> int:
        """How many tokens of a draft may be verified: as many as the stake covers.

        The risk of a draft is what its rows cost beyond a plain round, times the chance that it does not
        bring as many tokens (see `DOUBTED`). `extra[n]` is what n tokens cost beyond a plain round, in turns
        of one request (a plain round, where one decodes alone). Requests that decode `together` are slowed
        together, so what counts is what all of them have. `survivals` are those of a chain, unless it is said
        with what chance 1, 2, … of its tokens are `paying`. `rested`: plain rounds that were not settled yet.
        """
        those = together or (request,)
        stake = sum(self._stakes.get(it, 0.0) for it in those) + self.share * rested * len(those)
        advance = sum(self._advance(it, rested) for it in those)
        for length in range(len(survivals), 0, -1):
            cost = extra[length]
            pays = _paying(survivals, length, cost) if paying is None else paying[length - 1]
            if cost * (1.0 - pays**DOUBTED) <= stake + advance * survivals[length - 1] ** CERTAIN:
                return length
        return 0

    def _advance(self, request: int, rested: int) -> float:
        """What a request may lose on credit, in plain rounds: a share of what it is likely to write at least,
        as far as earlier answers say.
        """
        written = self._written.get(request)
        if written is None:
            return 0.0
        most = self._longest.get(request)
        if not self._sorted:
            return FIRST if most is None else min(FIRST, ADVANCE * most)
        first = bisect_right(self._sorted, written + rested)
        longer = len(self._sorted) - first
        if not longer:
            return 0.0
        shortest = self._sorted[first] if most is None else min(most, self._sorted[first])
        return min(ADVANCE * shortest * longer / (longer + DOUBT), MOST)

    def settle(self, request: int, committed: int, cost: float) -> None:
        """A round committed `committed` tokens and cost this request `cost` plain rounds."""
        stake = self._stakes.get(request, 0.0) + committed * (1.0 + self.share) - cost
        self._stakes[request] = min(stake, MOST)
        if request in self._written:
            self._written[request] += committed

    def forget(self, request: int, written: int = 0) -> None:
        """The request is over, after so many tokens. What it has won is left to the others."""
        left = self._stakes.pop(request, 0.0)
        if left > 0 and self._stakes:
            each = left / len(self._stakes)
            for other, stake in self._stakes.items():
                self._stakes[other] = max(stake, min(stake + each, LEFT))
        self._written.pop(request, None)
        self._longest.pop(request, None)
        if written:
            self._ended(written)


def _paying(survivals: Sequence[float], length: int, cost: float) -> float:
    """The chance that the first `length` tokens of a chain bring more tokens than they cost turns."""
    needed = int(cost)
    return survivals[needed] if needed < length else 0.0
