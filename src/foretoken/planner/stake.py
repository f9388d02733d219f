"""How much a request may lose: what it has won so far, and a little.

A chance estimate is right on average and wrong on some prompts; a short answer has no time to make up for a
few bad drafts. So every request has a stake, in units of a plain round: it starts small, grows by a small
share of a round with every token and by whatever drafting wins, shrinks by what its drafts cost all
requests, and no draft may risk more. With what asking may take besides (`attention`) that bounds the slowdown
of any request, whatever the estimates say.

A copy at the beginning of a long answer would wait for its stake. Where earlier answers were long, drafts
that look certain get an advance.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

START = 0.03
"""Plain rounds that a request may lose before it has won anything."""

SHARE = 0.018
"""Share of its time that a request may lose by drafts in the long run."""

DOUBTED = 4
"""Power of survival: a draft that is right to its end with chance S is taken to be lost with 1 - S^4, as
estimates near 1 are less certain than they say."""

ADVANCE = 0.005
"""Share of the shortest answer so far that a request may lose besides, by drafts that look certain: with
`SHARE` of what it has then written, 2.3 % of any answer that is no shorter."""

CERTAIN = 3
"""Power of survival: a draft that is right to its end with chance S may use S^3 of the advance."""

FIRST = 0.1
"""Advance in plain rounds while no answer was seen, of one that may be long enough for it."""

KEPT = 32
"""Answers of which the shortest counts."""

DOUBT = 3.0
"""Answers that must have been seen for half of that: another one may be shorter."""

MOST = 32.0
"""What was won is not saved up without limit: text that changes must not be paid for by text long past."""


LEFT = 0.2
"""Plain rounds up to which what a request has left over fills up the stakes of those it decoded with: their
company has been won for by its drafts, and they were held up by them."""


class Stakes:
    """The stakes of all requests."""

    def __init__(self) -> None:
        self._stakes: dict[int, float] = {}
        self._advances: dict[int, float] = {}
        self._lengths: deque[int] = deque(maxlen=KEPT)

    def start(self, request: int, most: int | None = None) -> None:
        """A request begins, which will write at most `most` tokens."""
        if not self._lengths:
            self._advances[request] = FIRST if most is None else min(FIRST, ADVANCE * most)
        else:
            shortest = min(self._lengths) if most is None else min(most, *self._lengths)
            known = len(self._lengths) / (len(self._lengths) + DOUBT)
            self._advances[request] = min(ADVANCE * shortest * known, MOST)

    def export(self) -> list[int]:
        """How long the last answers were, in tokens, the oldest first."""
        return list(self._lengths)

    def restore(self, lengths: Sequence[object]) -> None:
        """Begin with the lengths of an earlier run. What does not look like one is left out."""
        self._lengths.extend(
            length
            for length in lengths
            if isinstance(length, int) and not isinstance(length, bool) and length > 0
        )

    def cut(
        self,
        request: int,
        survivals: Sequence[float],
        extra: Sequence[float],
        together: Sequence[int] = (),
    ) -> int:
        """How many tokens of a draft may be verified: as many as the stake covers.

        The risk of a draft is what its rows cost beyond a plain round, times the chance that it is not right
        to its end (see `DOUBTED`). `extra[n]` is what n tokens cost beyond a plain round, in turns of one
        request (a plain round, where one decodes alone). Requests that decode `together` are slowed together,
        so what counts is what all of them have.
        """
        those = together or (request,)
        stake = sum(self._stakes.get(it, START) for it in those)
        advance = sum(self._advances.get(it, 0.0) for it in those)
        for length in range(len(survivals), 0, -1):
            right = survivals[length - 1]
            if extra[length] * (1.0 - right**DOUBTED) <= stake + advance * right**CERTAIN:
                return length
        return 0

    def settle(self, request: int, committed: int, cost: float) -> None:
        """A round committed `committed` tokens and cost this request `cost` plain rounds."""
        stake = self._stakes.get(request, START) + committed * (1.0 + SHARE) - cost
        self._stakes[request] = min(stake, MOST)

    def forget(self, request: int, written: int = 0) -> None:
        """The request is over, after so many tokens. What it has won is left to the others."""
        left = self._stakes.pop(request, START) - START
        if left > 0 and self._stakes:
            each = left / len(self._stakes)
            for other, stake in self._stakes.items():
                self._stakes[other] = max(stake, min(stake + each, LEFT))
        self._advances.pop(request, None)
        if written:
            self._lengths.append(written)
