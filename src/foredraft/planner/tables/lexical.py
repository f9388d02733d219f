# cython: language_level=3, annotation_typing=False, initializedcheck=False, cdivision=True, cpow=True
"""What the tokens themselves say of a draft: which one is proposed, after which, copied from where.

A drafter's estimates know how long the copied passage is and how often its continuations agree. But a line's
end that is copied is right more often than a name, whatever the match, and a word in the middle of a phrase
more often than the one that begins the next. So the log-odds of each estimate get a few weights of the
proposed token and of the one before it: a logistic regression on sparse features (McMahan et al. 2013, "Ad
Click Prediction"), learnt token by token with steps that shrink with what a weight has learnt (AdaGrad: Duchi
et al. 2011, "Adaptive Subgradient Methods for Online Learning and Stochastic Optimization", eq. 1), to a
least step: texts change. Nothing is known beforehand: the model's own texts teach it, verified or not. That
takes 6 to 7 % off the log loss, and 1 to 4 % off the time of recorded answers (docs/experiments.md).

Between two forwards it is memory that takes time, so what belongs to a token lies together: a row of `ROW`
weights, which is one line of a processor's cache, and the squared errors of each in the next. Memory: 5 MB.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import exp, isfinite
from typing import cast

import numpy as np
import numpy.typing as npt

RATE = 0.3
"""Step of the gradient, of a weight that has learnt nothing: divided by 1 + the root of the squared errors it
has learnt from."""

LEAST = 0.02
"""The step does not fall below this."""

LONG = 4
"""Matches longer than this count as this long."""

NONE = -1
"""Stands for a token that is not known, or not there."""

EXPORTED = 2048
"""Weights that are kept for the next run, those that say most."""

_MOST = 8.0  # of a weight from an earlier run

ROW = 16
"""Weights of a token: itself; by the length of the match, and by where it is copied from; and of the token
after it: in any case, and by the length of the match.
"""

_ROWS = 1 << 15  # vocabularies that are larger share rows
_PAIRS = 1 << 16  # hashed places of a token and the one that is drafted next
_LINE = 16  # numbers of a line of a processor's cache

# For compiled code, as those above, and where things are in a row.
_LONG, _RATE, _LEAST = LONG, RATE, LEAST
_MATCH, _ORIGIN, _BEFORE, _AFTER = 1, 2 + LONG, 6 + LONG, 7 + LONG
_STRIDE = 2 * ROW
_SQUARE = ROW  # from a weight of a row to its squared errors; of a pair they come next
_FIRST_PAIR = _STRIDE * _ROWS
_E: float = exp(1.0)


class Lexical:
    """The weights, for all sources."""

    def __init__(self) -> None:
        size = _FIRST_PAIR + 2 * _PAIRS
        # Filled, not only asked for: the first use of a page takes as long as a question may.
        whole = np.full(size + _LINE, 0.0, np.float32)
        begin = -whole.ctypes.data % (4 * _LINE) // 4
        self._array: npt.NDArray[np.float32] = whole[begin : begin + size]
        self._learnt = cast("memoryview[float]", self._array.data)

    def odds(self, before: int, token: int, following: int, match: int, origin: int) -> float:
        """What is added to the log-odds of `token` in a draft: after `before`, with `following` drafted next
        (`NONE`: nothing), after a match of so many tokens, copied from a text of this kind (0 to 3).
        """
        learnt, own, last = self._learnt, _row(token), _row(before)
        match = match if match < _LONG else _LONG
        total: float = learnt[own]
        total += learnt[own + _MATCH + match]
        total += learnt[own + _ORIGIN + origin]
        of_last: float = learnt[last + _BEFORE]
        of_last += learnt[last + _AFTER + match]
        total += of_last
        total += learnt[_pair(token, following)]
        return total

    def add(self, before: int, token: int, following: int, match: int, origin: int, *, error: float) -> None:
        """The token was right or wrong: `error` is 1 or 0, less the chance that it was given."""
        own, last, pair = _row(token), _row(before), _pair(token, following)
        match = match if match < _LONG else _LONG
        self._step(own, own + _SQUARE, error)
        self._step(own + _MATCH + match, own + _SQUARE + _MATCH + match, error)
        self._step(own + _ORIGIN + origin, own + _SQUARE + _ORIGIN + origin, error)
        self._step(last + _BEFORE, last + _SQUARE + _BEFORE, error)
        self._step(last + _AFTER + match, last + _SQUARE + _AFTER + match, error)
        self._step(pair, pair + 1, error)

    def _step(self, weight: int, squares: int, error: float) -> None:
        learnt: float = self._learnt[squares]
        learnt += error * error
        self._learnt[squares] = learnt
        rate = _RATE / (1.0 + learnt**0.5)
        self._learnt[weight] += error * (rate if rate > _LEAST else _LEAST)

    def weights(self) -> npt.NDArray[np.float32]:
        """All weights: the rows of all tokens, then the pairs."""
        rows, pairs = self._array[:_FIRST_PAIR], self._array[_FIRST_PAIR:]
        return np.concatenate((rows.reshape(_ROWS, 2, ROW)[:, 0].reshape(-1), pairs.reshape(_PAIRS, 2)[:, 0]))

    def export(self) -> dict[str, float]:
        """The weights that say most as a JSON object: place → weight."""
        weights = self.weights()
        most = np.argsort(-np.abs(weights), kind="stable")[:EXPORTED].tolist()
        return {str(place): round(float(weights[place]), 3) for place in most if weights[place]}

    def restore(self, weights: Mapping[str, object]) -> None:
        """Begin with weights from `export`. What does not look like weights is left out."""
        rows, pairs = ROW * _ROWS, _PAIRS
        for name, weight in weights.items():
            if not isinstance(weight, int | float) or isinstance(weight, bool):
                continue
            if name.isdecimal() and int(name) < rows + pairs and isfinite(weight) and abs(weight) <= _MOST:
                place = int(name)
                if place < rows:
                    at = place // ROW * _STRIDE + place % ROW
                else:
                    at = _FIRST_PAIR + 2 * (place - rows)
                self._learnt[at] = float(weight)


def _row(token: int) -> int:
    return (token & (_ROWS - 1)) * _STRIDE


def _pair(token: int, following: int) -> int:
    mixed = (token * 0x5BD1E995 + following * 0x4F6CDD1D) & 0x7FFFFFFF
    return _FIRST_PAIR + 2 * (((mixed ^ mixed >> 15) * 0x2C1B3C6D >> 13) & (_PAIRS - 1))


def moved(chance: float, odds: float) -> float:
    """A chance with `odds` added to its log-odds."""
    if chance <= 0.0 or odds == 0.0:
        return chance
    left: float = (1.0 - chance) * _E**-odds
    return chance / (chance + left)
