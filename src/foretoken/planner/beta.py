"""How often something was right: counts with forgetting, and a chance from them and a prior."""

from __future__ import annotations

from dataclasses import dataclass
from math import log2, sqrt

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


def caution(requests: int) -> float:
    """Standard deviations to take off chances when drafts of so many requests compete for a round."""
    return CAUTION + IN_COMPANY * log2(requests) if requests > 1 else CAUTION


@dataclass(slots=True)
class Counts:
    """A Beta distribution's."""

    right: float = 0.0
    wrong: float = 0.0

    def add(self, right: bool) -> None:
        """It was right, or it was not."""
        if right:
            self.right += 1
        else:
            self.wrong += 1
        if self.right + self.wrong > FORGET_AT:
            self.right /= 2
            self.wrong /= 2

    def chance(self, prior: float, caution: float) -> float:
        """The posterior mean less `caution` standard deviations, not below 0."""
        total = self.right + self.wrong + PRIOR_WEIGHT
        return self.cautious((self.right + PRIOR_WEIGHT * prior) / total, caution)

    def cautious(self, mean: float, caution: float) -> float:
        """`mean` less `caution` standard deviations after so many observations, not below 0."""
        total = self.right + self.wrong + PRIOR_WEIGHT
        chance = mean - caution * sqrt(mean * (1 - mean) / (total + 1))
        return chance if chance > 0.0 else 0.0


NOTHING = Counts()
"""Nothing was seen. Not to be added to."""
