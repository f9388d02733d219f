"""Rounds in which nothing is asked and nothing is decided.

Between two forwards the processor's caches hold the model, not the planner: what takes 10 µs in a loop takes
50 there. While requests write text that no drafter knows, it is known for some rounds in advance that none
of them will be asked (`Attention.rest`). The engine puts those rounds aside, and they are learnt from
together when the planner is needed again.
"""

from __future__ import annotations

from collections.abc import Sequence

from foredraft.protocols import RequestView
from foredraft.types import Load


class Rest:
    """The rest of the requests that decode together: it ends when the first of them may be asked again, when
    one leaves, and when another comes.
    """

    def __init__(self) -> None:
        self.requests: Sequence[int] = ()
        """Who rests, or rested last."""
        self.gone = 0
        """Rounds of it that went by since the last `end`."""
        self._left = 0

    def begin(self, requests: Sequence[int], load: Load, rounds: int) -> bool:
        """None of these is asked in so many rounds from the next one on; whether they rest in them."""
        self._left = 0
        if load.prefill_rows or load.owed:
            return False
        self.requests, self._left = requests, rounds
        return rounds > 0

    def goes_on(self, requests: Sequence[RequestView], load: Load) -> bool:
        """Whether the round that begins is one of the rest."""
        resting = self._left > 0 and not (load.prefill_rows or load.owed) and _are(requests, self.requests)
        self._left = self._left - 1 if resting else 0
        self.gone += resting
        return resting

    def interrupt(self) -> None:
        """The round that begins is none of the rest, which is over."""
        self._left = 0

    def end(self) -> int:
        """How many rounds of the rest went by since this was last asked; the rest may go on."""
        gone, self.gone = self.gone, 0
        return gone


def _are(requests: Sequence[RequestView], ids: Sequence[int]) -> bool:
    """Whether these are the requests of those ids, in that order."""
    if len(requests) != len(ids):
        return False
    for request, number in zip(requests, ids, strict=True):  # noqa: SIM110 - compiled, `all` is slower
        if request.id != number:
            return False
    return True
