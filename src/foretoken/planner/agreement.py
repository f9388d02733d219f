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

from collections.abc import Mapping, Sequence
from math import exp, isfinite, log
from typing import NamedTuple, TypeAlias

from foretoken.sequences import common_prefix
from foretoken.types import Draft

SAME = (0.0, 0.7, 0.6)
"""Before anything was seen: a constant and the weights of a source's own log-odds and of the other's, where
both say the same. Fitted to greedy outputs of a 135M model on six kinds of prompts."""
DIFFERENT = (-0.7, 0.7, -0.15)
"""The same where the other one says something else."""

RATE = 0.01
"""How fast the weights follow: step of the gradient, for each token."""

_LEAST = 0.002  # chances are mixed as if they were no closer to 0 and 1
_MOST = 8.0  # of a weight from an earlier run

Weights: TypeAlias = list[float]


class Beside(NamedTuple):
    """A token with another draft's beside it. `own` is its source's estimate, `other` that of the surest of
    the others, `same` whether that one says the same.
    """

    source: str
    own: float
    other: float
    same: bool


def shared(drafts: Sequence[Draft]) -> int:
    """So many of the first tokens of a draft may have another one's beside them: as many as any two chains
    begin with in common, and one more. 0 if there are no two chains.
    """
    chains = [draft.tokens for draft in drafts if draft.parents is None]
    if len(chains) < 2:
        return 0
    longest = 0
    for i, tokens in enumerate(chains):
        for others in chains[:i]:
            longest = max(longest, common_prefix(tokens, others))
    return longest + 1


def beside(number: int, drafts: Sequence[Draft], chances: Sequence[Sequence[float]]) -> list[Beside]:
    """The first tokens of draft `number`, as far as another one has something to say there. `chances[i]`: the
    estimates of draft i for its first tokens, given those before them; none of a tree.
    """
    draft, own = drafts[number], chances[number]
    found: list[Beside] = []
    others = [i for i in range(len(drafts)) if i != number]
    for depth, chance in enumerate(own):
        token, surest, same = draft.tokens[depth], -1.0, False
        agreeing: list[int] = []
        for i in others:
            if depth < len(chances[i]):
                agrees = drafts[i].tokens[depth] == token
                if agrees:
                    agreeing.append(i)
                if chances[i][depth] > surest:
                    surest, same = chances[i][depth], agrees
        if surest < 0.0:
            break
        found.append(Beside(draft.source, chance, surest, same))
        others = agreeing
    return found


class Agreement:
    """The weights of all sources."""

    def __init__(self) -> None:
        self._weights: dict[tuple[str, bool], Weights] = {}

    def chance(self, token: Beside) -> float:
        """The chance that a token is right, given what the other says."""
        constant, own, other = self._weights.get(
            (token.source, token.same), SAME if token.same else DIFFERENT
        )
        return 1.0 / (1.0 + exp(-(constant + own * _log_odds(token.own) + other * _log_odds(token.other))))

    def add(self, token: Beside, right: bool) -> float:
        """A token was right, or it was not. Returns the chance it was given."""
        chance = self.chance(token)
        step = RATE * ((1.0 if right else 0.0) - chance)
        first = SAME if token.same else DIFFERENT
        weights = self._weights.setdefault((token.source, token.same), list(first))
        weights[0] += step
        weights[1] += step * _log_odds(token.own)
        weights[2] += step * _log_odds(token.other)
        return chance

    def export(self) -> dict[str, list[float]]:
        """The weights as a JSON object: "source|same" → [constant, own, other]."""
        return {
            f"{source}|{int(same)}": [round(weight, 4) for weight in weights]
            for (source, same), weights in self._weights.items()
        }

    def restore(self, weights: Mapping[str, object]) -> None:
        """Begin with weights from `export`. What does not look like weights is left out."""
        for name, value in weights.items():
            source, _, same = name.rpartition("|")
            match value:
                case [int() | float(), int() | float(), int() | float()] if source and same in ("0", "1"):
                    if all(isfinite(weight) and abs(weight) <= _MOST for weight in value):
                        self._weights[source, same == "1"] = [float(weight) for weight in value]


def _log_odds(chance: float) -> float:
    chance = min(1.0 - _LEAST, max(_LEAST, chance))
    return log(chance / (1.0 - chance))
