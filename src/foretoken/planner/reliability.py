"""Is a chance of 70 % right seven times in ten? The reliability of survival estimates, as they are used."""

from __future__ import annotations

from dataclasses import dataclass

BINS = 10


@dataclass(frozen=True, slots=True)
class Bin:
    """Of `count` draft tokens the mean chance `predicted`, and the share `observed` that was right."""

    predicted: float
    observed: float
    count: int


class ReliabilityTable:
    """Predicted chances against outcomes, in `BINS` bins of equal width."""

    def __init__(self) -> None:
        self._predicted = [0.0] * BINS
        self._right = [0] * BINS
        self._count = [0] * BINS

    def add(self, predicted: float, right: bool) -> None:
        """A token was given this chance, given that all before it are right, as they were."""
        at = min(BINS - 1, int(predicted * BINS))
        self._predicted[at] += predicted
        self._right[at] += right
        self._count[at] += 1

    def bins(self) -> list[Bin]:
        """Those that hold anything, from unlikely to likely."""
        return [
            Bin(predicted / count, right / count, count)
            for predicted, right, count in zip(self._predicted, self._right, self._count, strict=True)
            if count
        ]

    @property
    def error(self) -> float | None:
        """The expected calibration error (Naeini et al. 2015): the mean distance between the two, weighed by
        how many tokens a bin has. None before anything was scored.
        """
        bins = self.bins()
        total = sum(found.count for found in bins)
        if not total:
            return None
        return sum(found.count * abs(found.predicted - found.observed) for found in bins) / total
