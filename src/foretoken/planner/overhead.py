"""What asking drafters costs a round beside their own time: planning, choosing, telling them more."""

from __future__ import annotations

from collections import deque
from statistics import median

WINDOW = 15
"""Rounds of which the median is taken."""


class _Rounds:
    """Rounds of as many requests: what those took in which drafters were asked, and the others."""

    def __init__(self) -> None:
        self.of: dict[bool, deque[float]] = {asked: deque(maxlen=WINDOW) for asked in (False, True)}
        self.more = 0.0

    def changed(self) -> None:
        if self.of[True] and self.of[False]:
            self.more = max(0.0, median(self.of[True]) - median(self.of[False]))


class Overhead:
    """What a round takes beside drafting and its forward, when drafters were asked and when not."""

    def __init__(self) -> None:
        self._rounds: dict[int, _Rounds] = {}
        self._latest: deque[float] | None = None

    def ms(self, requests: int) -> float:
        """What asking adds to a round of so many requests, in milliseconds; 0 until rounds of both kinds were
        seen, of as many requests or fewer.
        """
        rounds = self._rounds.get(requests)
        if rounds is not None and rounds.more:
            return rounds.more
        fewer = [number for number, seen in self._rounds.items() if number < requests and seen.more]
        return self._rounds[max(fewer)].more if fewer else 0.0

    def add(self, ms: float, requests: int = 1, *, asked: bool, late_ms: float = 0.0) -> None:
        """A round of so many requests took `ms` until it was learnt from, and the one before it `late_ms`
        more than was known then.
        """
        if self._latest is not None:
            self._latest[-1] += late_ms
        rounds = self._rounds.get(requests)
        if rounds is None:
            rounds = self._rounds[requests] = _Rounds()
        self._latest = rounds.of[asked]
        self._latest.append(ms)
        if asked or len(self._latest) == 1:  # one plain round more changes little
            rounds.changed()
