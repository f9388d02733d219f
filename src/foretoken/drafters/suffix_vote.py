"""From the places where the end of a text occurred before to one draft with a confidence for each token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import exp
from operator import mul

import numpy as np
import numpy.typing as npt

from foretoken.drafters.suffix_index import REACH, SEPARATOR, SuffixIndex, Tokens
from foretoken.drafters.suffix_tree import Branch

# The constants were chosen by replaying greedy outputs of a 135M model on six kinds of prompts, and are flat
# around these values: see benchmarks/drafters.py for how to measure.
LENGTH_WEIGHT = 4.0
"""How much more an occurrence counts that matches one token more."""
PAST_WEIGHT = 0.25
"""How much an occurrence in past outputs counts beside an equally long one in the request."""
DISSENT = 2.0
"""Exponent of the share that agrees: a disputed token is right less often than its share of the votes."""
UNCERTAINTY = 0.75
"""Share of wrong tokens after a match of one token; it falls as one over the match's length."""
PAST_UNCERTAINTY = 1.2
"""The same for a match in past outputs, of which the shortest is two tokens long."""

SHARPNESS, COUNT_WEIGHT, OFFSET = 0.9, 0.45, -0.12
"""The estimate as a logistic regression sees it, fitted to the same outputs: log-odds × SHARPNESS +
COUNT_WEIGHT × ln(occurrences) + OFFSET. Of two equally long matches the more frequent is right more often."""

LONGEST_BRANCH = 16
"""Tokens of a continuation that leaves the chosen one."""
MIN_BRANCH = 0.02
"""A branch ends where the estimate that all of the path to it is right falls below this."""


@dataclass(frozen=True, slots=True)
class Matches:
    """Earlier occurrences of a text's end, newest first, in one index.

    `lengths`: how many tokens match. `rows`: what followed each, REACH tokens at most; from a SEPARATOR on it
    is nothing, or another text. `past`: they are past outputs, not the request's own text. `places`: where
    what followed begins, in the index.
    """

    lengths: Sequence[int]
    rows: Sequence[Sequence[int]]
    past: bool
    places: Sequence[int]


@dataclass(frozen=True, slots=True)
class Continuation:
    """The chosen chain, the estimate for each token given those before it, and what is known of the match.

    `place`: where it stands in its index. `branches`: continuations that weigh less, best first, if any were
    asked for.
    """

    tokens: Sequence[int]
    confidence: Sequence[float]
    match_length: int
    count: int
    agree: float
    past: bool
    place: int
    branches: Sequence[Branch] = ()


def longest_matches(
    index: SuffixIndex, text: SuffixIndex, *, shortest: int, limit: int, past: bool, min_chance: float = 0.0
) -> Matches | None:
    """The newest occurrences in `index` of the end of `text`, at the deepest level of grams that has any.

    At most `limit` occurrences are looked at, and none that matches fewer than `shortest` tokens is kept.
    None also if no vote about them could be as likely right as `min_chance`, which is seen before anything
    is measured.
    `index` may be `text`; otherwise its levels must be among the text's.
    """
    tail = text.tail()
    for level in reversed(range(len(index.levels))):
        width = index.levels[level]
        if len(text) < width:
            continue
        hashed = text.hashes[text.levels.index(width)]
        found = index.occurrences(level, tail, hashed, limit)
        if found:
            deeper = index.levels[level + 1] if level + 1 < len(index.levels) else REACH
            if min_chance and _estimates(len(found), past=past)[deeper - 1] < min_chance:
                return None
            lengths, least = index.lengths(found, tail), max(width, shortest)
            good = [i for i, length in enumerate(lengths) if length >= least]
            if good:
                rows = [index.following(found[i]) for i in good]
                return Matches([lengths[i] for i in good], rows, past, [found[i] for i in good])
        if width <= shortest:
            break
    return None


def vote(
    matches: Sequence[Matches], limit: int, min_survival: float = 0.0, *, branches: int = 0
) -> Continuation | None:
    """The continuation that weighs most, at most `limit` (≤ REACH) tokens.

    It ends where the estimate that all of it is right falls below `min_survival`, but not before one token.

    Longer and newer matches weigh more. The heaviest first token wins, then the chain follows the heaviest
    occurrence that has it. Where that one reaches the end of the request's text the chain goes on with
    itself, as a text that repeats with that period would. Token i's confidence is the share, raised to
    DISSENT, of the weight still in agreement that agrees on it, times 1 - UNCERTAINTY / (length + i): drafted
    tokens count into the match, and text of other outputs is trusted less. None when nothing followed any
    occurrence. Of the continuations that differ the `branches` best are given as well.
    """
    rows, lengths, weights, own = _weighed(matches)
    leader = _leader([row[0] for row in rows], weights)
    if leader is None:
        return None
    past = leader >= own
    chain = _Chain(rows, weights, leader, lengths[leader], past=past, goes_round=not past)
    survival = 1.0
    while len(chain.tokens) < limit and chain.goes_on():
        survival *= chain.confidence[-1]
        if survival < min_survival and len(chain.tokens) > 1:
            chain.drop()
            break
    others: Sequence[Branch] = ()
    if branches and len(rows) > 1:
        occurrences = _occurrences(rows, weights, lengths, own)
        others = occurrences.branches(chain.tokens, chain.confidence, branches, max(min_survival, MIN_BRANCH))
    return Continuation(
        tokens=chain.tokens,
        confidence=chain.confidence,
        match_length=lengths[leader],
        count=len(rows),
        agree=chain.first_share,
        past=past,
        place=[place for group in matches for place in group.places][leader],
        branches=others,
    )


def _weighed(matches: Sequence[Matches]) -> tuple[list[Sequence[int]], list[int], list[float], int]:
    """All occurrences' rows, lengths and weights, and how many of them, the first ones, are of the request's
    own text.
    """
    longest = max([length for group in matches for length in group.lengths])
    rows: list[Sequence[int]] = []
    lengths: list[int] = []
    weights: list[float] = []
    own = 0
    for group in matches:
        by = PAST_WEIGHT if group.past else 1.0
        for rank, length in enumerate(group.lengths, 1):
            weights.append(by * LENGTH_WEIGHT ** (length - longest) / rank)
        rows += group.rows
        lengths += group.lengths
        if not group.past:
            own = len(rows)
    return rows, lengths, weights, own


class _Chain:
    """The heaviest occurrence's continuation, token by token: what follows in the row of the `leader`, and
    the estimate for each token given those before it. Those that part are left behind; one whose text has
    ended agrees with everything.
    """

    def __init__(
        self,
        rows: Sequence[Sequence[int]],
        weights: Sequence[float],
        leader: int,
        length: int,
        *,
        past: bool,
        goes_round: bool,
    ) -> None:
        self.tokens: list[int] = []
        self.confidence: list[float] = []
        self.first_share = 1.0
        self._row = rows[leader]
        self._period = len(self._row)
        self._goes_round = goes_round
        self._length = length
        self._count = len(rows)
        self._estimates = _estimates(self._count, past=past)
        self._past = past
        # Those that go on, and agree so far, but for the leader.
        self._others = [(rows[i], weights[i]) for i in range(len(rows)) if i != leader]
        self._behind = sum(weights)

    def goes_on(self) -> bool:
        """Add one more token; False, and nothing is added, if there is none."""
        at = len(self.tokens)
        token = self._row[at] if at < self._period else SEPARATOR
        if token == SEPARATOR:  # what ends with the text goes round
            self._period = min(self._period, at)
            if not self._goes_round or not self._period:
                return False
            token = self.tokens[at - self._period]
        share = self._agreeing(at, token) if self._others else 1.0
        if not at:
            self.first_share = share
        matched = self._length + at
        if share == 1.0:
            estimate = self._estimates[matched]
        else:
            estimate = _fitted(share**DISSENT * _trust(matched, past=self._past), self._count)
        self.tokens.append(token)
        self.confidence.append(estimate)
        return True

    def drop(self) -> None:
        """Take the last token away."""
        self.tokens.pop()
        self.confidence.pop()

    def _agreeing(self, at: int, token: int) -> float:
        """The share of the weight so far that agrees on this token."""
        before, going_on = self._behind, []
        for other in self._others:
            row, weight = other
            said = row[at] if at < len(row) else SEPARATOR
            if said == token:
                going_on.append(other)
            elif said != SEPARATOR:
                self._behind -= weight
        if self._behind == before and len(going_on) == len(self._others):
            return 1.0
        self._others = going_on
        return self._behind / before


def _occurrences(
    rows: Sequence[Sequence[int]], weights: Sequence[float], lengths: Sequence[int], own: int
) -> _Occurrences:
    table = np.full((len(rows), REACH), SEPARATOR, np.int32)
    for i, row in enumerate(rows):
        text = list(row)
        end = text.index(SEPARATOR) if SEPARATOR in text else len(text)
        table[i, :end] = text[:end]
    return _Occurrences(table, np.array(weights), lengths, own)


@dataclass(frozen=True, slots=True)
class _Occurrences:
    """All that vote: what followed each, its weight, how long it matches. The first `own` are of the
    request's own text.
    """

    rows: Tokens
    weights: npt.NDArray[np.float64]
    lengths: Sequence[int]
    own: int

    def branches(
        self, tokens: Sequence[int], confidence: Sequence[float], most: int, least: float
    ) -> list[Branch]:
        """The `most` likeliest continuations that leave the chosen one; `confidence[i]` is its token i's."""
        differs = (self.rows[:, : len(tokens)] != tokens) & (self.rows[:, : len(tokens)] != SEPARATOR)
        leaving = np.where(differs.any(axis=1), differs.argmax(axis=1), len(tokens))
        survival = [1.0, *accumulate(confidence, mul)]
        groups: dict[tuple[int, int], list[int]] = {}
        for i in np.flatnonzero(leaving < len(tokens)).tolist():
            at = int(leaving[i])
            groups.setdefault((at, int(self.rows[i, at])), []).append(i)
        rated: list[tuple[float, float, int, list[int]]] = []
        for (at, _), members in groups.items():
            share = float(self.weights[members].sum() / self.weights[leaving >= at].sum()) ** DISSENT
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

    def _branch(self, at: int, share: float, members: list[int]) -> Branch:
        """How the heaviest of the `members` goes on, which leave the chosen chain at `at` with one token."""
        leader = max(members, key=self.weights.__getitem__)
        rows = [self.rows[i, at : at + LONGEST_BRANCH].tolist() for i in members]
        weights, first = self.weights[members].tolist(), members.index(leader)
        length, past = self.lengths[leader] + at, leader >= self.own
        chain = _Chain(rows, weights, first, length, past=past, goes_round=False)
        while len(chain.tokens) < LONGEST_BRANCH and chain.goes_on():
            pass
        chain.confidence[0] = _fitted(share * _trust(length, past=past), len(members))
        return Branch(at, chain.tokens, chain.confidence)


def _trust(length: int, *, past: bool) -> float:
    """How far a match of so many tokens is trusted where nothing disagrees."""
    doubt = (PAST_UNCERTAINTY if past else UNCERTAINTY) / max(length, 1)
    return max(1.0 - doubt, 0.0)


def _fitted(raw: float, count: int) -> float:
    odds = float((raw / max(1.0 - raw, 1e-3)) ** SHARPNESS * float(count) ** COUNT_WEIGHT) * exp(OFFSET)
    return odds / (1.0 + odds)


_UNANIMOUS: dict[tuple[int, bool], list[float]] = {}


def _estimates(count: int, *, past: bool) -> list[float]:
    """The estimate after a match of so many tokens, where `count` occurrences agree."""
    known = _UNANIMOUS.get((count, past))
    if known is None:
        known = [_fitted(_trust(length, past=past), count) for length in range(2 * REACH)]
        _UNANIMOUS[count, past] = known
    return known


def _leader(firsts: Sequence[int], weights: Sequence[float]) -> int | None:
    """The heaviest occurrence among those whose first token weighs most; None when nothing followed any."""
    totals: dict[int, float] = {}
    for token, weight in zip(firsts, weights, strict=True):
        totals[token] = totals.get(token, 0.0) + weight
    totals.pop(SEPARATOR, None)
    if not totals:
        return None
    chosen = max(totals, key=totals.__getitem__)
    return max((i for i, token in enumerate(firsts) if token == chosen), key=weights.__getitem__)
