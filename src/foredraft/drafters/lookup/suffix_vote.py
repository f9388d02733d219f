# cython: language_level=3, annotation_typing=False, initializedcheck=False
"""From the places where the end of a text occurred before to one draft with a confidence for each token."""

from __future__ import annotations

from collections.abc import Sequence
from math import exp

from foredraft.drafters.lookup.suffix_index import REACH, SEPARATOR, SuffixIndex

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

_NOTHING, _REACH = -1, 64  # SEPARATOR and REACH, for compiled code


class Matches:
    """Earlier occurrences of a text's end in one index, newest first.

    `ends`: where they end. `lengths`: how many tokens match. `past`: they are in past outputs, not in the
    request's own text.
    """

    def __init__(self, index: SuffixIndex, ends: list[int], lengths: list[int], past: bool) -> None:
        self.index = index
        self.ends = ends
        self.lengths = lengths
        self.past = past


class Continuation:
    """The chosen chain, the estimate for each token given those before it, and what is known of the match.

    `match_length`: how long the match is. `count`: the occurrences that voted. `agree`: the share of their
    weight behind the first token. `past`: it is a past output's. `place`: where it stands in its index.
    """

    def __init__(self, chain: Chain, those: Weighed, leader: int) -> None:
        self.tokens = chain.tokens
        self.confidence = chain.confidence
        self.match_length = those.lengths[leader]
        self.count = len(those.ends)
        self.agree = chain.first_share
        self.past = leader >= those.own
        self.place = those.ends[leader]


def longest_matches(
    index: SuffixIndex, text: SuffixIndex, shortest: int, limit: int, min_chance: float = 0.0
) -> Matches | None:
    """The newest occurrences in `index` of the end of `text`, at the deepest level of grams that has any.

    At most `limit` occurrences are looked at, and none that matches fewer than `shortest` tokens is kept.
    None also if no vote about them could be as likely right as `min_chance`, which is seen before anything
    is measured.
    `index` may be `text`; otherwise it is one of past outputs, and its levels must be among the text's.
    """
    levels, past = index.levels, index is not text
    for level in range(len(levels) - 1, -1, -1):
        width = levels[level]
        if text.size < width:
            continue
        found = index.occurrences(level, text, limit)
        if found:
            deeper = levels[level + 1] if level + 1 < len(levels) else _REACH
            if min_chance and _estimates(len(found), past)[deeper - 1] < min_chance:
                return None
            lengths, least = index.lengths(found, text), max(width, shortest)
            if min(lengths) < least:
                good = [i for i in range(len(lengths)) if lengths[i] >= least]
                found, lengths = [found[i] for i in good], [lengths[i] for i in good]
            if found:
                return Matches(index, found, lengths, past)
        if width <= shortest:
            break
    return None


def vote(matches: list[Matches], limit: int, min_survival: float = 0.0) -> Continuation | None:
    """The continuation that weighs most, at most `limit` (≤ REACH) tokens.

    It ends where the estimate that all of it is right falls below `min_survival`, but not before one token.

    Longer and newer matches weigh more. The heaviest first token wins, then the chain follows the heaviest
    occurrence that has it. Where that one reaches the end of the request's text the chain goes on with
    itself, as a text that repeats with that period would. Token i's confidence is the share, raised to
    DISSENT, of the weight still in agreement that agrees on it, times 1 - UNCERTAINTY / (length + i): drafted
    tokens count into the match, and text of other outputs is trusted less. None when nothing followed any
    occurrence.
    """
    those = weighed(matches)
    leader = _leader(those)
    if leader < 0:
        return None
    chain = Chain(those, leader, _REACH, goes_round=leader < those.own)
    survival = 1.0
    while len(chain.tokens) < limit and chain.goes_on():
        survival *= chain.latest
        if survival < min_survival and len(chain.tokens) > 1:
            chain.drop()
            break
    return Continuation(chain, those, leader)


class Weighed:
    """All occurrences that vote, place by place: the index, the end, the length of the match, and the weight
    of each. The first `own` are of the request's own text.
    """

    def __init__(self) -> None:
        self.indexes: list[SuffixIndex] = []
        self.ends: list[int] = []
        self.lengths: list[int] = []
        self.weights: list[float] = []
        self.own = 0


def weighed(matches: Sequence[Matches]) -> Weighed:
    """All occurrences with their weights."""
    those, longest = Weighed(), 0
    for group in matches:
        for length in group.lengths:
            longest = max(longest, length)
    for group in matches:
        by = PAST_WEIGHT if group.past else 1.0
        for rank, length in enumerate(group.lengths, 1):
            those.weights.append(by * LENGTH_WEIGHT ** (length - longest) / rank)
            those.indexes.append(group.index)
        those.ends += group.ends
        those.lengths += group.lengths
        if not group.past:
            those.own = len(those.ends)
    return those


class Chain:
    """An occurrence's continuation, token by token: what follows that of the `leader`, and the estimate for
    each token given those before it. Those that part are left behind; one whose text has ended agrees with
    everything. `room`: tokens behind the ends that are looked at. `goes_round`: where the leader's text ends
    the chain goes on with itself.
    """

    def __init__(self, those: Weighed, leader: int, room: int, goes_round: bool) -> None:
        self.tokens: list[int] = []
        self.confidence: list[float] = []
        self.latest = 1.0
        self.first_share = 1.0
        self._index = those.indexes[leader]
        self._end = those.ends[leader]
        self._period = room
        self._goes_round = goes_round
        self._length = those.lengths[leader]
        self._count = len(those.ends)
        self._past = leader >= those.own
        self._estimates = _estimates(self._count, self._past)
        # Those that go on, and agree so far, but for the leader.
        self._those = those
        self._others = [i for i in range(self._count) if i != leader]
        self._behind = 0.0
        for weight in those.weights:
            self._behind += weight

    def goes_on(self) -> bool:
        """Add one more token; False, and nothing is added, if there is none."""
        at = len(self.tokens)
        token = self._index.after(self._end, at) if at < self._period else _NOTHING
        if token == _NOTHING:  # what ends with the text goes round
            self._period = min(self._period, at)
            if not self._goes_round or not self._period:
                return False
            token = self.tokens[at - self._period]
        share = self._agreeing(at, token) if self._others else 1.0
        if not at:
            self.first_share = share
        matched = self._length + at
        if share == 1.0:
            self.latest = self._estimates[matched]
        else:
            self.latest = fitted(share**DISSENT * trust(matched, self._past), self._count)
        self.tokens.append(token)
        self.confidence.append(self.latest)
        return True

    def drop(self) -> None:
        """Take the last token away."""
        self.tokens.pop()
        self.confidence.pop()

    def _agreeing(self, at: int, token: int) -> float:
        """The share of the weight so far that agrees on this token."""
        before, those = self._behind, self._those
        going_on: list[int] = []
        for i in self._others:
            index = those.indexes[i]
            said = index.after(those.ends[i], at) if at < _REACH else _NOTHING
            if said == token:
                going_on.append(i)
            elif said != _NOTHING:
                self._behind -= those.weights[i]
        if self._behind == before and len(going_on) == len(self._others):
            return 1.0
        self._others = going_on
        return self._behind / before


def _leader(those: Weighed) -> int:
    """The heaviest occurrence among those whose first token weighs most; -1 when nothing followed any."""
    totals: dict[int, float] = {}
    firsts: list[int] = []
    for i in range(len(those.ends)):
        index = those.indexes[i]
        token = index.after(those.ends[i], 0)
        firsts.append(token)
        if token != SEPARATOR:
            totals[token] = totals.get(token, 0.0) + those.weights[i]
    chosen, most = SEPARATOR, 0.0
    for token, total in totals.items():
        if total > most:
            chosen, most = token, total
    leader, heaviest = -1, 0.0
    for i in range(len(firsts)):
        if firsts[i] == chosen and those.weights[i] > heaviest and chosen != SEPARATOR:
            leader, heaviest = i, those.weights[i]
    return leader


def trust(length: int, past: bool) -> float:
    """How far a match of so many tokens is trusted where nothing disagrees."""
    doubt = (PAST_UNCERTAINTY if past else UNCERTAINTY) / max(length, 1)
    return max(1.0 - doubt, 0.0)


def fitted(raw: float, count: int) -> float:
    """The estimate as the logistic regression sees it, where `count` occurrences vote."""
    odds = float((raw / max(1.0 - raw, 1e-3)) ** SHARPNESS * float(count) ** COUNT_WEIGHT) * exp(OFFSET)
    return odds / (1.0 + odds)


_UNANIMOUS: dict[tuple[int, bool], list[float]] = {}


def _estimates(count: int, past: bool) -> list[float]:
    """The estimate after a match of so many tokens, where `count` occurrences agree."""
    known = _UNANIMOUS.get((count, past))
    if known is None:
        known = [fitted(trust(length, past), count) for length in range(2 * REACH)]
        _UNANIMOUS[count, past] = known
    return known
