# cython: language_level=3, annotation_typing=False, initializedcheck=False
"""The last of some measurements, and what they come to: medians, because machines are noisy.

Between two forwards what takes time is to get numbers from memory, each from another place. So those of a
window lie side by side.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable

WINDOW = 15
"""Measurements that are kept where nothing else is said."""


def median(values: Iterable[float]) -> float:
    """The middle value, or the mean of the two middle ones; of one or more.

    As `statistics.median`, compiled: that one takes most of its time for what it is not asked here.
    """
    ordered = sorted(values)
    half = len(ordered) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2


class Window:
    """The last `most` measurements, of which `values` are the first."""

    def __init__(self, values: Iterable[float] = (), most: int = WINDOW) -> None:
        self._most = most
        self._count = self._next = 0
        # As they came, in a ring; and behind them in their order, as far as it was asked for.
        self._values: memoryview[float] = memoryview(array("d", bytes(8 * 2 * most)))
        for value in values:
            self.add(value)

    def __len__(self) -> int:
        return self._count

    def add(self, value: float) -> None:
        """Another one; the oldest goes."""
        self._values[self._next] = value
        self._next = self._next + 1 if self._next + 1 < self._most else 0
        self._count = min(self._count + 1, self._most)

    def more(self, value: float) -> None:
        """The last one, of one or more, is so much more than it was."""
        self._values[(self._next if self._next else self._most) - 1] += value

    def median(self) -> float:
        """The middle one, or the mean of the two in the middle; of one or more."""
        self._sort()
        middle = self._most + self._count // 2
        if self._count % 2:
            return self._values[middle]
        return (self._values[middle - 1] + self._values[middle]) / 2.0

    def middle_mean(self) -> float:
        """The mean of the middle half; 0 of none."""
        if not self._count:
            return 0.0
        self._sort()
        outer, total = self._count // 4, 0.0
        for i in range(self._most + outer, self._most + self._count - outer):
            total += self._values[i]
        return total / (self._count - 2 * outer)

    def latest(self, count: int) -> list[float]:
        """The last so many, in any order."""
        most = self._most
        return [self._values[(self._next - 1 - i) % most] for i in range(min(count, self._count))]

    def forget_dearer_half(self) -> None:
        """Only the lesser half is left."""
        self._sort()
        self._count //= 2
        for i in range(self._count):
            self._values[i] = self._values[self._most + i]
        self._next = self._count

    def _sort(self) -> None:
        for i in range(self._count):
            value, at = self._values[i], self._most + i
            while at > self._most and self._values[at - 1] > value:
                self._values[at] = self._values[at - 1]
                at -= 1
            self._values[at] = value
