# cython: language_level=3, annotation_typing=False, initializedcheck=False, cdivision=True, cpow=True
"""Is a chance of 70 % right seven times in ten? The reliability of survival estimates, as they are used."""

from __future__ import annotations

from array import array
from dataclasses import dataclass

BINS = 10

_RIGHT, _COUNT, _BIN, _BINS = 1, 2, 3, BINS  # of a bin, and for compiled code


@dataclass(frozen=True, slots=True)
class Bin:
    """Of `count` draft tokens the mean chance `predicted`, and the share `observed` that was right."""

    predicted: float
    observed: float
    count: int


class ReliabilityTable:
    """Predicted chances against outcomes, in `BINS` bins of equal width."""

    def __init__(self) -> None:
        self._sums: memoryview[float] = memoryview(array("d", bytes(8 * _BIN * _BINS)))

    def add(self, predicted: float, right: bool) -> None:
        """A token was given this chance, given that all before it are right, as they were."""
        at = _BIN * min(_BINS - 1, int(predicted * _BINS))
        self._sums[at] += predicted
        self._sums[at + _RIGHT] += 1.0 if right else 0.0
        self._sums[at + _COUNT] += 1.0

    def bins(self) -> list[Bin]:
        """Those that hold anything, from unlikely to likely."""
        sums = list(self._sums)
        return [
            Bin(predicted / count, right / count, int(count))
            for predicted, right, count in zip(sums[0::3], sums[1::3], sums[2::3], strict=True)
            if count
        ]

    @property
    def error(self) -> float | None:
        """The expected calibration error (Naeini et al. 2015): the mean distance between the two, weighed by
        how many tokens a bin has. None before anything was scored.
        """
        bins = self.bins()
        total = sum([found.count for found in bins])
        if not total:
            return None
        return sum([found.count * abs(found.predicted - found.observed) for found in bins]) / total
