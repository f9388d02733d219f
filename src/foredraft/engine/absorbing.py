"""Which of the target's hidden states (features) a drafter gets, and when (protocols.Drafter).

A forward leaves nothing else in the processor's caches. So it takes 70 µs to copy the features of one row and
to have a head keep them, a percent of a round of a 135M model (10 µs in a loop). Rows of a prompt take 2 µs
each. So only those are passed on that may be read: of a prompt the last ones, and of rounds none while the
drafter is not asked. The last row is still there when it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from foredraft.protocols import RequestView
from foredraft.types import Features

PATIENCE = 32
"""Rounds of a request without being asked after which a drafter that reads several rows gets no more."""

BLOCK = 64
"""Rows that are copied at once: 0.4 MB with three layers of a 135M model, which stays in a processor's cache.
512 at once took twice as long.
"""

FeaturesOf = Callable[[Sequence[int]], Features]
"""Of rows of the last forward, as `Model.features`."""

Absorb = Callable[[RequestView, int, Features], None]


class Absorber:
    """A drafter's `absorb`, and for how many rounds it was not asked, by request. `reads`: the most rows that
    it reads; 0 for all.
    """

    def __init__(self, absorb: Absorb, reads: int) -> None:
        self.absorb = absorb
        self._reads = reads
        self._patience = 0 if reads == 1 else PATIENCE
        self._unasked: dict[int, int] = {}

    def takes(self, request: int, start: int, count: int, end: int) -> Iterator[tuple[int, int]]:
        """The blocks that it gets of `count` rows of a forward, from position `start` of the text on: (first
        row, rows). `end`: the position up to which a prompt is read before the next draft; 0 for a round.
        """
        rounds = 0 if end else self._unasked.get(request, 0)
        if rounds >= self._patience:
            return
        self._unasked[request] = rounds if end else rounds + 1
        passed = max(0, (end or start + count) - self._reads - start) if self._reads else 0
        for first in range(passed, count, BLOCK):
            yield first, min(BLOCK, count - first)

    def asked(self, request: int) -> bool:
        """It is asked for a draft; returns whether it has not got the last row."""
        rounds = self._unasked.get(request, 0)
        self._unasked[request] = 0
        return rounds >= self._patience

    def stop(self, request: int) -> None:
        """The request is over."""
        self._unasked.pop(request, None)
