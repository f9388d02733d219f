"""Rounds in which nothing is asked and nothing is decided: they are kept, and learnt from together.

Between two forwards the processor's caches hold the model, not the planner: what takes 10 µs in a loop takes
50 there. While a request writes text that no drafter knows, it is known for some rounds in advance that none
will be asked (`Attention.rest`). Those rounds are put aside until the planner is needed again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from foretoken.protocols import RequestView
from foretoken.types import Load, Round


class Rest:
    """The rest of one request that decodes alone."""

    def __init__(self) -> None:
        self._request = -1
        self._left = 0
        self._resting = False
        self._kept: list[Round] = []

    def begin(self, requests: Sequence[RequestView], load: Load, rounds: Callable[[int], int]) -> None:
        """Nobody is asked in this round; `rounds(request)` says in how many after it neither."""
        self._left = 0
        if len(requests) == 1 and not (load.prefill_rows or load.owed):
            self._request, self._left = requests[0].id, rounds(requests[0].id)

    def goes_on(self, requests: Sequence[RequestView], load: Load) -> bool:
        """Whether the round that begins is one of the rest."""
        self._resting = (
            self._left > 0
            and len(requests) == 1
            and requests[0].id == self._request
            and not (load.prefill_rows or load.owed)
        )
        self._left = self._left - 1 if self._resting else 0
        return self._resting

    def keeps(self, measured: Round) -> bool:
        """Put the round aside if it was one of the rest."""
        if self._resting and measured.rows == len(measured.outcomes):
            self._kept.append(measured)
            return True
        return False

    def end(self) -> list[Round]:
        """The rounds that were put aside; the rest may go on."""
        kept, self._kept = self._kept, []
        return kept
