# cython: language_level=3, annotation_typing=False, initializedcheck=False, cdivision=True, cpow=True
"""How often something was right: counts with forgetting, and a chance from them and a prior."""

from __future__ import annotations

from math import log2

PRIOR_WEIGHT = 8.0
"""How many observations the prior is worth."""

FORGET_AT = 256.0
"""Counts are halved when there are this many, so that they follow the text as it changes."""

CAUTION = 1.0
"""Standard deviations taken off a chance when one request decides alone."""

IN_COMPANY = 0.15
"""What each doubling of the requests adds: a round's drafts are the best of all that all requests have, and
the more are compared, the more the best of them are those whose chance is overrated.
"""

_PRIOR_WEIGHT, _FORGET_AT = PRIOR_WEIGHT, FORGET_AT  # for compiled code


def caution(requests: int) -> float:
    """Standard deviations to take off chances when drafts of so many requests compete for a round."""
    return CAUTION + IN_COMPANY * log2(requests) if requests > 1 else CAUTION


def posterior(right: float, wrong: float, prior: float, deviations: float) -> float:
    """The mean of a Beta distribution with these counts and `prior`, less so many standard deviations, not
    below 0.
    """
    total = right + wrong + _PRIOR_WEIGHT
    return cautious((right + _PRIOR_WEIGHT * prior) / total, total, deviations)


def cautious(mean: float, total: float, deviations: float) -> float:
    """`mean` less so many standard deviations after `total` observations, the prior's among them, not below
    0.
    """
    chance = mean - deviations * (mean * (1.0 - mean) / (total + 1.0)) ** 0.5
    return chance if chance > 0.0 else 0.0


def forgets(right: float, wrong: float) -> bool:
    """Whether counts are to be halved."""
    return right + wrong > _FORGET_AT


class Counts:
    """A Beta distribution's."""

    def __init__(self, right: float = 0.0, wrong: float = 0.0) -> None:
        self.right = right
        self.wrong = wrong

    def add(self, right: bool) -> None:
        """It was right, or it was not."""
        if right:
            self.right += 1.0
        else:
            self.wrong += 1.0
        if forgets(self.right, self.wrong):
            self.right /= 2.0
            self.wrong /= 2.0

    def chance(self, prior: float, deviations: float) -> float:
        """The posterior mean less so many standard deviations, not below 0."""
        return posterior(self.right, self.wrong, prior, deviations)


NOTHING = Counts()
"""Nothing was seen. Not to be added to."""
