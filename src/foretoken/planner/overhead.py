"""What asking drafters costs a round beside their own time: planning, choosing, telling them more."""

from __future__ import annotations

from collections import deque
from statistics import median

WINDOW = 15
"""Rounds of which the median is taken."""


class Overhead:
    """What a round takes beside drafting and its forward, when drafters were asked and when not."""

    def __init__(self) -> None:
        self._rounds: dict[bool, deque[float]] = {asked: deque(maxlen=WINDOW) for asked in (False, True)}
        self._latest: deque[float] | None = None
        self.ms = 0.0
        """What asking adds, in milliseconds for each request; 0 until both were seen."""

    def add(self, ms: float, *, asked: bool, late_ms: float = 0.0) -> None:
        """A round took `ms` for each request until it was learnt from, and the one before it `late_ms` more
        than was known then.
        """
        if self._latest is not None:
            self._latest[-1] += late_ms
        self._latest = self._rounds[asked]
        self._latest.append(ms)
        plain = self._rounds[False]
        if self._rounds[True] and plain and (asked or len(plain) == 1):  # one plain round more changes little
            self.ms = max(0.0, median(self._rounds[True]) - median(plain))
