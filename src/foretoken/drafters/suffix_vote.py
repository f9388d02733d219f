"""From the places where the end of a text occurred before to one draft with a confidence for each token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import exp
from operator import mul

import numpy as np
import numpy.typing as npt

from foretoken.drafters.suffix_index import REACH, SEPARATOR, Positions, SuffixIndex, Tokens
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

_LENGTHS = np.maximum(np.arange(2 * REACH), 1)
_TRUST = 1 - UNCERTAINTY / _LENGTHS
_PAST_TRUST = np.maximum(1 - PAST_UNCERTAINTY / _LENGTHS, 0.0)


@dataclass(frozen=True, slots=True)
class Matches:
    """Earlier occurrences of a text's end, newest first, in one index.

    `lengths`: how many tokens match, shape (occurrences,). `rows`: what followed, shape (occurrences,
    REACH), SEPARATOR where that text ended. `past`: they are past outputs, not the request's own text.
    """

    lengths: Positions
    rows: Tokens
    past: bool


@dataclass(frozen=True, slots=True)
class Continuation:
    """The chosen chain, the estimate for each token given those before it, and what is known of the match.

    `branches`: continuations that weigh less, best first, if any were asked for.
    """

    tokens: Sequence[int]
    confidence: Sequence[float]
    match_length: int
    count: int
    agree: float
    past: bool
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
            if min_chance and _most(deeper - 1, len(found), past=past) < min_chance:
                return None
            ends = np.array(found, np.intp)
            lengths = index.lengths(ends, tail)
            good = lengths >= max(width, shortest)
            if good.any():
                rows = index.following(ends[good])
                if past:  # what comes after a separator is another output
                    rows[np.logical_or.accumulate(rows == SEPARATOR, axis=1)] = SEPARATOR
                return Matches(lengths[good], rows, past)
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
    if len(matches) == 1 and len(matches[0].lengths) == 1:
        return _unanimous(matches[0], limit, min_survival)
    lengths = np.concatenate([group.lengths for group in matches])
    weights = LENGTH_WEIGHT ** (lengths - lengths.max()).astype(np.float64)
    weights /= np.concatenate([np.arange(1, 1 + len(group.lengths)) for group in matches])
    own = 0
    for group in matches:
        if group.past:
            weights[own:] *= PAST_WEIGHT
        else:
            own = len(group.lengths)
    rows = np.concatenate([group.rows for group in matches])
    leader = _leader(rows[:, 0].tolist(), weights.tolist())
    if leader is None:
        return None
    tokens = _chain(rows[leader], limit, repeat=leader < own)
    shares = _shares(rows[:, : len(tokens)], tokens, weights)
    trust = _TRUST if leader < own else _PAST_TRUST
    raw = shares**DISSENT * trust[lengths[leader] : lengths[leader] + len(tokens)]
    confidence = _fitted(raw, len(lengths))
    survival = np.multiply.accumulate(confidence)
    keep = max(1, int((survival >= min_survival).sum()))
    others: Sequence[Branch] = ()
    if branches and len(rows) > 1:
        occurrences = _Occurrences(rows, weights, lengths, own)
        least = max(min_survival, MIN_BRANCH)
        others = occurrences.branches(tokens[:keep], survival, branches, least)
    return Continuation(
        tokens=tokens[:keep].tolist(),
        confidence=confidence[:keep].tolist(),
        match_length=int(lengths[leader]),
        count=len(lengths),
        agree=float(shares[0]),
        past=leader >= own,
        branches=others,
    )


def _unanimous(match: Matches, limit: int, min_survival: float) -> Continuation | None:
    """What `vote` says of a single occurrence: half of all votes, and between two forwards every numpy call
    takes several times what it takes in a loop.
    """
    if match.rows[0, 0] == SEPARATOR:
        return None
    tokens = _chain(match.rows[0], limit, repeat=not match.past).tolist()
    length = int(match.lengths[0])
    estimates = (_SOLE_PAST if match.past else _SOLE)[length : length + len(tokens)]
    keep = max(1, sum(survival >= min_survival for survival in accumulate(estimates, mul)))
    return Continuation(tokens[:keep], estimates[:keep], length, 1, 1.0, match.past)


@dataclass(frozen=True, slots=True)
class _Occurrences:
    """All that vote: what followed each, its weight, how long it matches. The first `own` are of the
    request's own text.
    """

    rows: Tokens
    weights: npt.NDArray[np.float64]
    lengths: Positions
    own: int

    def branches(
        self, tokens: Tokens, survival: npt.NDArray[np.float64], most: int, least: float
    ) -> list[Branch]:
        """The `most` likeliest continuations that leave the chosen one; `survival[i]` is its token i's."""
        differs = (self.rows[:, : len(tokens)] != tokens) & (self.rows[:, : len(tokens)] != SEPARATOR)
        leaving = np.where(differs.any(axis=1), differs.argmax(axis=1), len(tokens))
        groups: dict[tuple[int, int], list[int]] = {}
        for i in np.flatnonzero(leaving < len(tokens)).tolist():
            at = int(leaving[i])
            groups.setdefault((at, int(self.rows[i, at])), []).append(i)
        rated: list[tuple[float, float, int, list[int]]] = []
        for (at, _), members in groups.items():
            share = float(self.weights[members].sum() / self.weights[leaving >= at].sum()) ** DISSENT
            reached = float(survival[at - 1]) if at else 1.0
            if reached * share >= least:
                rated.append((reached * share, share, at, members))
        rated.sort(key=lambda rating: rating[0], reverse=True)
        found: list[Branch] = []
        for _, share, at, members in rated[:most]:
            branch, reached = self._branch(at, share, members), float(survival[at - 1]) if at else 1.0
            keep = int((np.multiply.accumulate(branch.confidence) * reached >= least).sum())
            if keep:
                found.append(Branch(at, branch.tokens[:keep], branch.confidence[:keep]))
        return found

    def _branch(self, at: int, share: float, members: list[int]) -> Branch:
        """How the heaviest of the `members` goes on, which leave the chosen chain at `at` with one token."""
        leader = max(members, key=self.weights.__getitem__)
        tokens = _chain(self.rows[leader, at:], LONGEST_BRANCH, repeat=False)
        shares = _shares(self.rows[members, at : at + len(tokens)], tokens, self.weights[members]) ** DISSENT
        shares[0] = share
        length = int(self.lengths[leader]) + at
        trust = (_TRUST if leader < self.own else _PAST_TRUST)[length : length + len(tokens)]
        return Branch(at, tokens.tolist(), _fitted(shares * trust, len(members)).tolist())


def _fitted(raw: npt.NDArray[np.float64], count: int) -> npt.NDArray[np.float64]:
    odds = (raw / np.maximum(1.0 - raw, 1e-3)) ** SHARPNESS * (count**COUNT_WEIGHT * exp(OFFSET))
    fitted: npt.NDArray[np.float64] = odds / (1.0 + odds)
    return fitted


_SOLE: list[float] = _fitted(_TRUST, 1).tolist()
_SOLE_PAST: list[float] = _fitted(_PAST_TRUST, 1).tolist()
"""The estimate after a match of so many tokens, where nothing disagrees."""


def _most(length: int, count: int, *, past: bool) -> float:
    """The highest estimate for the first token after matches of at most `length` tokens."""
    share = (PAST_UNCERTAINTY if past else UNCERTAINTY) / length
    odds = (
        (max(1.0 - share, 0.0) / max(share, 1e-3)) ** SHARPNESS * float(count) ** COUNT_WEIGHT * exp(OFFSET)
    )
    return float(odds / (1.0 + odds))


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


def _chain(row: Tokens, limit: int, *, repeat: bool) -> Tokens:
    """The first `limit` tokens that followed; to `repeat`, a text that ended goes round again."""
    ended = row == SEPARATOR
    length = int(ended.argmax()) if ended.any() else len(row)
    if repeat and length < limit:
        return np.tile(row[:length], -(-limit // length))[:limit]
    return row[: min(length, limit)]


def _shares(rows: Tokens, tokens: Tokens, weights: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """For each token the share of weight behind it, among the occurrences that agree with all before it.

    An occurrence whose text has ended agrees with everything.
    """
    if len(rows) == 1:
        return np.ones(len(tokens))
    differs = (rows != tokens) & (rows != SEPARATOR)
    agrees_for = np.where(differs.any(axis=1), differs.argmax(axis=1), len(tokens))
    leaving = np.bincount(agrees_for, weights, len(tokens) + 1)
    staying = leaving[::-1].cumsum()[::-1]
    shares: npt.NDArray[np.float64] = staying[1:] / staying[:-1]
    return shares
