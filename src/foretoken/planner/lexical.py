"""What the tokens themselves say of a draft: which one is proposed, after which, copied from where.

A drafter's estimates know how long the copied passage is and how often its continuations agree. But a line's
end that is copied is right more often than a name, whatever the match, and a word in the middle of a phrase
more often than the one that begins the next. So the log-odds of each estimate get a weight of the proposed
token, one of the token before it, one of the two together, and a few more: a logistic regression on sparse
features in hashed places (Weinberger et al. 2009, "Feature Hashing for Large Scale Multitask Learning",
arXiv 0902.2206), learnt token by token with steps that shrink with what a weight has learnt (AdaGrad: Duchi
et al. 2011, "Adaptive Subgradient Methods for Online Learning and Stochastic Optimization", eq. 1; as in
McMahan et al. 2013, "Ad Click Prediction", section 3.1), to a least step: texts change. Nothing is known
beforehand: the model's own texts teach it, verified or not. That takes 7 % off the log loss, and 3 % off the
time of recorded answers (docs/experiments.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from math import exp, isfinite, sqrt

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

_BITS = 16
_MASK = (1 << _BITS) - 1
_MOST = 8.0  # of a weight from an earlier run

# Odd numbers of 31 bits, one for each kind of feature; products of two and a token's id stay below 2^62.
_TOKEN, _BEFORE, _PAIR, _NEXT = 0x5BD1E995, 0x2C1B3C6D, 0x297A2D39, 0x4F6CDD1D
_LONGER, _AFTER, _ORIGIN = 0x1B873593, 0x52DCE729, 0x38B34AE5


class Lexical:
    """The weights, for all sources."""

    def __init__(self) -> None:
        self._weights = [0.0] * (1 << _BITS)
        self._squares = [0.0] * (1 << _BITS)

    def odds(self, before: int, token: int, following: int, match: int, origin: int) -> float:
        """What is added to the log-odds of `token` in a draft: after `before`, with `following` drafted next
        (`NONE`: nothing), after a match of so many tokens, copied from a text of this kind (a small number).
        """
        weights, own, last = self._weights, token * _TOKEN, before * _BEFORE
        match = match + 1 if match < LONG else LONG + 1
        return (
            weights[_place(own)]
            + weights[_place(last)]
            + weights[_place(own + before * _PAIR)]
            + weights[_place(own + following * _NEXT + 1)]
            + weights[_place(own + match * _LONGER)]
            + weights[_place(last + match * _AFTER)]
            + weights[_place(own + (origin + 1) * _ORIGIN)]
        )

    def add(self, before: int, token: int, following: int, match: int, origin: int, *, error: float) -> None:
        """The token was right or wrong: `error` is 1 or 0, less the chance that it was given."""
        own, last = token * _TOKEN, before * _BEFORE
        match = match + 1 if match < LONG else LONG + 1
        self._step(_place(own), error)
        self._step(_place(last), error)
        self._step(_place(own + before * _PAIR), error)
        self._step(_place(own + following * _NEXT + 1), error)
        self._step(_place(own + match * _LONGER), error)
        self._step(_place(last + match * _AFTER), error)
        self._step(_place(own + (origin + 1) * _ORIGIN), error)

    def _step(self, place: int, error: float) -> None:
        learnt = self._squares[place] + error * error
        self._squares[place] = learnt
        self._weights[place] += error * max(LEAST, RATE / (1.0 + sqrt(learnt)))

    def export(self) -> dict[str, float]:
        """The weights that say most as a JSON object: place → weight."""
        said = [place for place, weight in enumerate(self._weights) if weight != 0.0]
        said.sort(key=lambda place: -abs(self._weights[place]))
        return {str(place): round(self._weights[place], 3) for place in said[:EXPORTED]}

    def restore(self, weights: Mapping[str, object]) -> None:
        """Begin with weights from `export`. What does not look like weights is left out."""
        for name, weight in weights.items():
            if not isinstance(weight, int | float) or isinstance(weight, bool):
                continue
            if name.isdecimal() and int(name) <= _MASK and isfinite(weight) and abs(weight) <= _MOST:
                self._weights[int(name)] = float(weight)


def _place(mixed: int) -> int:
    """16 of its bits, well mixed."""
    low = mixed & 0x7FFFFFFF
    return ((low ^ low >> 15) * 0x2C1B3C6D >> 13 ^ mixed >> 31) & _MASK


def moved(chance: float, odds: float) -> float:
    """A chance with `odds` added to its log-odds."""
    if chance <= 0.0 or odds == 0.0:
        return chance
    return chance / (chance + (1.0 - chance) * exp(-odds))
