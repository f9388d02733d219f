"""The continuations that leave the likeliest one, for targets that verify trees."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from operator import mul

import numpy as np

from foredraft.drafters.lookup.suffix_index import REACH, SEPARATOR, Tokens
from foredraft.drafters.lookup.suffix_tree import Branch
from foredraft.drafters.lookup.suffix_vote import (
    DISSENT,
    Chain,
    Continuation,
    Matches,
    Weighed,
    fitted,
    trust,
    weighed,
)

LONGEST_BRANCH = 16
"""Tokens of a continuation that leaves the chosen one."""
MIN_BRANCH = 0.02
"""A branch ends where the estimate that all of the path to it is right falls below this."""


def branches(
    matches: Sequence[Matches], chosen: Continuation, most: int, min_survival: float = 0.0
) -> Sequence[Branch]:
    """Of the continuations that leave the chosen one the `most` likeliest, best first, as far as the path to
    each of their tokens is as likely as `min_survival`.
    """
    if chosen.count < 2:
        return ()
    return _Occurrences(weighed(matches)).branches(
        chosen.tokens, chosen.confidence, most, max(min_survival, MIN_BRANCH)
    )


class _Occurrences:
    """All that vote, with what followed each as a table of shape (occurrences, REACH)."""

    def __init__(self, those: Weighed) -> None:
        self._those = those
        self._rows: Tokens = np.full((len(those.ends), REACH), SEPARATOR, np.int32)
        self._weights = np.array(those.weights)
        for i, (index, end) in enumerate(zip(those.indexes, those.ends, strict=True)):
            text = index.following(end)
            ended = np.flatnonzero(text == SEPARATOR)
            length = int(ended[0]) if len(ended) else REACH
            self._rows[i, :length] = text[:length]

    def branches(
        self, tokens: Sequence[int], confidence: Sequence[float], most: int, least: float
    ) -> list[Branch]:
        """`confidence[i]` is the estimate for the chosen token i."""
        rows = self._rows[:, : len(tokens)]
        differs = (rows != tokens) & (rows != SEPARATOR)
        leaving = np.where(differs.any(axis=1), differs.argmax(axis=1), len(tokens))
        survival = [1.0, *accumulate(confidence, mul)]
        groups: dict[tuple[int, int], list[int]] = {}
        for i in np.flatnonzero(leaving < len(tokens)).tolist():
            at = int(leaving[i])
            groups.setdefault((at, int(rows[i, at])), []).append(i)
        rated: list[tuple[float, float, int, list[int]]] = []
        for (at, _), members in groups.items():
            share = float(self._weights[members].sum() / self._weights[leaving >= at].sum()) ** DISSENT
            if survival[at] * share >= least:
                rated.append((survival[at] * share, share, at, members))
        rated.sort(key=lambda rating: rating[0], reverse=True)
        found: list[Branch] = []
        for _, share, at, members in rated[:most]:
            branch = self._branch(at, share, members)
            reached = accumulate(branch.confidence, mul, initial=survival[at])
            keep = sum(chance >= least for chance in reached) - 1
            if keep > 0:
                found.append(Branch(at, branch.tokens[:keep], branch.confidence[:keep]))
        return found

    def _branch(self, at: int, share: float, members: Sequence[int]) -> Branch:
        """How the heaviest of the `members` goes on, which leave the chosen chain at `at` with one token."""
        group, own = Weighed(), self._those.own
        for i in members:
            group.indexes.append(self._those.indexes[i])
            group.ends.append(self._those.ends[i] + at)
            group.lengths.append(self._those.lengths[i] + at)
            group.weights.append(self._those.weights[i])
        group.own = sum(i < own for i in members)
        leader = max(range(len(members)), key=group.weights.__getitem__)
        chain = Chain(group, leader, min(LONGEST_BRANCH, REACH - at), goes_round=False)
        while len(chain.tokens) < LONGEST_BRANCH and chain.goes_on():
            pass
        past = leader >= group.own
        chain.confidence[0] = fitted(share * trust(group.lengths[leader], past), len(members))
        return Branch(at, chain.tokens, chain.confidence)
