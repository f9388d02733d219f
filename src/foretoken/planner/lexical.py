"""What the tokens themselves say of a draft: which one is proposed, after which, copied from where.

A drafter's estimates know how long the copied passage is and how often its continuations agree. But a line's
end that is copied is right more often than a name, whatever the match, and a word in the middle of a phrase
more often than the one that begins the next. So the log-odds of each estimate get a few weights of the
proposed token and of the one before it: a logistic regression on sparse features (McMahan et al. 2013, "Ad
Click Prediction"), learnt token by token with steps that shrink with what a weight has learnt (AdaGrad: Duchi
et al. 2011, "Adaptive Subgradient Methods for Online Learning and Stochastic Optimization", eq. 1), to a
least step: texts change. Nothing is known beforehand: the model's own texts teach it, verified or not. That
takes 6 to 7 % off the log loss, and 1 to 4 % off the time of recorded answers (docs/experiments.md).

Between two forwards it is memory that takes time, so what belongs to a token lies together, in one row of
`ROW` numbers. Memory: 5 MB.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from math import exp, isfinite, sqrt

import numpy as np

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
"""Numbers of a token: itself; by the length of the match, and by where it is copied from; and of the token
after it: in any case, and by the length of the match.
"""
_MATCH, _ORIGIN, _BEFORE, _AFTER = 1, 2 + LONG, 6 + LONG, 7 + LONG

_ROWS = 1 << 15
"""Vocabularies that are larger share rows."""

_PAIRS = 1 << 16
"""Hashed places of a token and the one that is drafted next."""

_SIZE = ROW * _ROWS + _PAIRS


class Lexical:
    """The weights, for all sources."""

    def __init__(self) -> None:
        self._weights = array("f", bytes(4 * _SIZE))
        self._squares = array("f", bytes(4 * _SIZE))

    def odds(self, before: int, token: int, following: int, match: int, origin: int) -> float:
        """What is added to the log-odds of `token` in a draft: after `before`, with `following` drafted next
        (`NONE`: nothing), after a match of so many tokens, copied from a text of this kind (0 to 3).
        """
        weights, own, last = self._weights, _row(token), _row(before)
        match = match if match < LONG else LONG
        total: float = weights[own] + weights[own + _MATCH + match] + weights[own + _ORIGIN + origin]
        total += weights[last + _BEFORE] + weights[last + _AFTER + match]
        total += weights[_pair(token, following)]
        return total

    def add(self, before: int, token: int, following: int, match: int, origin: int, *, error: float) -> None:
        """The token was right or wrong: `error` is 1 or 0, less the chance that it was given."""
        own, last = _row(token), _row(before)
        match = match if match < LONG else LONG
        self._step(own, error)
        self._step(own + _MATCH + match, error)
        self._step(own + _ORIGIN + origin, error)
        self._step(last + _BEFORE, error)
        self._step(last + _AFTER + match, error)
        self._step(_pair(token, following), error)

    def _step(self, place: int, error: float) -> None:
        learnt: float = self._squares[place] + error * error
        self._squares[place] = learnt
        self._weights[place] += error * max(LEAST, RATE / (1.0 + sqrt(learnt)))

    def export(self) -> dict[str, float]:
        """The weights that say most as a JSON object: place → weight."""
        weights = np.frombuffer(self._weights, np.float32)
        most = np.argsort(-np.abs(weights), kind="stable")[:EXPORTED].tolist()
        return {str(place): round(float(weights[place]), 3) for place in most if weights[place]}

    def restore(self, weights: Mapping[str, object]) -> None:
        """Begin with weights from `export`. What does not look like weights is left out."""
        for name, weight in weights.items():
            if not isinstance(weight, int | float) or isinstance(weight, bool):
                continue
            if name.isdecimal() and int(name) < _SIZE and isfinite(weight) and abs(weight) <= _MOST:
                self._weights[int(name)] = float(weight)


def _row(token: int) -> int:
    return (token & (_ROWS - 1)) * ROW


def _pair(token: int, following: int) -> int:
    mixed = (token * 0x5BD1E995 + following * 0x4F6CDD1D) & 0x7FFFFFFF
    return ROW * _ROWS + (((mixed ^ mixed >> 15) * 0x2C1B3C6D >> 13) & (_PAIRS - 1))


def moved(chance: float, odds: float) -> float:
    """A chance with `odds` added to its log-odds."""
    if chance <= 0.0 or odds == 0.0:
        return chance
    return chance / (chance + (1.0 - chance) * exp(-odds))
