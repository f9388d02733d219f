# cython: language_level=3, annotation_typing=False, initializedcheck=False, cdivision=True, cpow=True
"""What another drafter says of the same place changes an estimate: a token that two propose is right more
often, and of two different tokens at most one is right.

A source's own estimates are calibrated (`calibration`), each by itself. Where another draft has a token after
the same text as well, both log-odds are mixed: by a logistic regression for each source, one where the other
says the same and one where it does not, whose weights follow the text (the mixing of PAQ: Mahoney 2005,
"Adaptive Weighing of Context Models for Lossless Data Compression", eq. 5 and 6). That takes a tenth off the
log loss of all estimates, counts by how sure either is take 8 % (docs/experiments.md).

Trees have more to learn, an order among siblings, and `merge` does that.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from math import exp, isfinite, log
from typing import TypeGuard

SAME = (0.0, 0.7, 0.6)
"""Before anything was seen: a constant and the weights of a source's own log-odds and of the other's, where
both say the same. Fitted to greedy outputs of a 135M model on six kinds of prompts."""
DIFFERENT = (-0.7, 0.7, -0.15)
"""The same where the other one says something else."""

RATE = 0.01
"""How fast the weights follow: step of the gradient, for each token."""

_LEAST = 0.002  # chances are mixed as if they were no closer to 0 and 1
_MOST = 8.0  # of a weight from an earlier run

# For compiled code. A source's place has three weights where another says the same and whether they were
# learnt, then those where it does not.
_RATE = RATE
_ROW, _KIND, _OWN, _OTHER, _LEARNT = 8, 4, 1, 2, 3
_E: float = exp(1.0)


class Agreement:
    """The weights of all sources."""

    def __init__(self) -> None:
        self._places: dict[str, int] = {}
        self._array = array("d")
        self._weights: memoryview[float] = memoryview(self._array)

    def place(self, source: str) -> int:
        """Where a source's weights are."""
        found = self._places.get(source)
        if found is None:
            found = self._places[source] = _ROW * len(self._places)
            self._array = self._array + array("d", (*SAME, 0.0, *DIFFERENT, 0.0))
            self._weights = memoryview(self._array)
        return found

    def chance(self, place: int, own: float, other: float, same: bool) -> float:
        """The chance that a token is right, by the log-odds of its source's estimate, those of the surest
        other one, and whether that is the same one. `place`: the source's.
        """
        at = place if same else place + _KIND
        odds = self._weights[at]
        odds += self._weights[at + _OWN] * own
        odds += self._weights[at + _OTHER] * other
        against: float = _E**-odds
        return 1.0 / (1.0 + against)

    def add(self, place: int, own: float, other: float, same: bool, right: bool) -> float:
        """Such a token was right, or it was not. Returns the chance it was given."""
        chance = self.chance(place, own, other, same)
        step = _RATE * ((1.0 if right else 0.0) - chance)
        at = place if same else place + _KIND
        self._weights[at] += step
        self._weights[at + _OWN] += step * own
        self._weights[at + _OTHER] += step * other
        self._weights[at + _LEARNT] = 1.0
        return chance

    def export(self) -> dict[str, list[float]]:
        """The weights that were learnt as a JSON object: "source|same" → [constant, own, other]."""
        return {
            f"{source}|{same}": [round(self._weights[i], 4) for i in range(at, at + _LEARNT)]
            for source, place in self._places.items()
            for same, at in ((1, place), (0, place + _KIND))
            if self._weights[at + _LEARNT]
        }

    def restore(self, weights: Mapping[str, object]) -> None:
        """Begin with weights from `export`. What does not look like weights is left out."""
        for name, value in weights.items():
            source, _, same = name.rpartition("|")
            if source and same in ("0", "1") and _are_weights(value):
                at = self.place(source) + (0 if same == "1" else _KIND)
                for i, weight in enumerate((*value, 1.0)):
                    self._weights[at + i] = float(weight)


def _are_weights(value: object) -> TypeGuard[Sequence[float]]:
    return (
        isinstance(value, list)
        and len(value) == _LEARNT
        and all(isinstance(it, int | float) and isfinite(it) and abs(it) <= _MOST for it in value)
    )


def log_odds(chance: float) -> float:
    """ln(chance ÷ (1 - chance)), of one that is neither 0 nor 1, nor too close to either."""
    chance = min(1.0 - _LEAST, max(_LEAST, chance))
    odds: float = log(chance / (1.0 - chance))
    return odds
