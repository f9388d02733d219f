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


class Company:
    """The first tokens of a draft of `source`, as far as another draft has one beside them. For each: the
    log-odds of its source's estimate, those of the surest token beside it, and whether that is the same one.
    """

    def __init__(self, source: str) -> None:
        self.source = source
        self.own: list[float] = []
        self.other: list[float] = []
        self.same: list[bool] = []

    def __len__(self) -> int:
        return len(self.same)

    def add(self, own: float, other: float, *, same: bool) -> None:
        """The next token: its own estimate, and that of the surest other one."""
        self.own.append(_log_odds(own))
        self.other.append(_log_odds(other))
        self.same.append(same)


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


def beside(number: int, drafts: Sequence[Draft], chances: Sequence[Sequence[float]]) -> Company:
    """The first tokens of draft `number`, as far as another one has something to say there. `chances[i]`: the
    estimates of draft i for its first tokens, given those before them; none of a tree.
    """
    draft, own = drafts[number], chances[number]
    tokens = draft.tokens
    found = Company(draft.source)
    others = [i for i in range(len(drafts)) if i != number]
    for depth, chance in enumerate(own):
        token, surest, same = tokens[depth], -1.0, False
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
        found.add(chance, surest, same=same)
        others = agreeing
    return found


class _Mix:
    """A source's weights: a constant, that of its own log-odds, and of the other's."""

    def __init__(self, constant: float, own: float, other: float) -> None:
        self.constant = constant
        self.own = own
        self.other = other


_AT_FIRST = {True: _Mix(*SAME), False: _Mix(*DIFFERENT)}


class Agreement:
    """The weights of all sources."""

    def __init__(self) -> None:
        self._mixes: dict[bool, dict[str, _Mix]] = {True: {}, False: {}}

    def chance(self, company: Company, depth: int) -> float:
        """The chance that the token at `depth` is right, given what the other says."""
        same = company.same[depth]
        mix = self._mixes[same].get(company.source)
        if mix is None:
            mix = _AT_FIRST[same]
        odds = mix.constant + mix.own * company.own[depth] + mix.other * company.other[depth]
        return 1.0 / (1.0 + exp(-odds))

    def add(self, company: Company, depth: int, right: bool) -> float:
        """That token was right, or it was not. Returns the chance it was given."""
        chance = self.chance(company, depth)
        step = RATE * ((1.0 if right else 0.0) - chance)
        same = company.same[depth]
        mix = self._mixes[same].get(company.source)
        if mix is None:
            first = _AT_FIRST[same]
            mix = self._mixes[same][company.source] = _Mix(first.constant, first.own, first.other)
        mix.constant += step
        mix.own += step * company.own[depth]
        mix.other += step * company.other[depth]
        return chance

    def export(self) -> dict[str, list[float]]:
        """The weights as a JSON object: "source|same" → [constant, own, other]."""
        return {
            f"{source}|{int(same)}": [round(weight, 4) for weight in (mix.constant, mix.own, mix.other)]
            for same, mixes in self._mixes.items()
            for source, mix in mixes.items()
        }

    def restore(self, weights: Mapping[str, object]) -> None:
        """Begin with weights from `export`. What does not look like weights is left out."""
        for name, value in weights.items():
            source, _, same = name.rpartition("|")
            match value:
                case [int() | float(), int() | float(), int() | float()] if source and same in ("0", "1"):
                    if all(isfinite(weight) and abs(weight) <= _MOST for weight in value):
                        constant, own, other = map(float, value)
                        self._mixes[same == "1"][source] = _Mix(constant, own, other)


def _log_odds(chance: float) -> float:
    chance = min(1.0 - _LEAST, max(_LEAST, chance))
    return log(chance / (1.0 - chance))
