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
        self._median: dict[bool, float] = {}
        self.ms = 0.0
        """What asking adds, in milliseconds for each request; 0 until both were seen."""

    def add(self, ms: float, *, asked: bool) -> None:
        """A round took `ms` for each request."""
        self._rounds[asked].append(ms)
        self._median[asked] = median(self._rounds[asked])
        if len(self._median) > 1:
            self.ms = max(0.0, self._median[True] - self._median[False])
