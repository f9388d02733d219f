"""Combines the earlier occurrences of a text's end into one draft, with a confidence for each token."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import MutableSequence, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate, groupby
from math import exp
from operator import itemgetter, mul, neg

from foredraft.drafters.suffix_index import REACH, SEPARATOR, SuffixIndex, common_prefix

# The constants were chosen by replaying greedy outputs of a 135M model on six kinds of prompts, and are flat
# around these values: see benchmarks/drafters.py for how to measure.
LENGTH_WEIGHT = 4.0
"""Factor of an occurrence's weight for one more matching token."""
PAST_WEIGHT = 0.25
"""Weight of an occurrence in past outputs relative to an equally long one in the request."""
DISSENT = 2.0
"""Exponent of the share that agrees: a disputed token is right less often than its share of the votes."""
UNCERTAINTY = 0.75
"""Share of wrong tokens after a match of one token; inversely proportional to the match's length."""
PAST_UNCERTAINTY = 1.2
"""The same for a match in past outputs, of which the shortest is two tokens long."""

SHARPNESS, COUNT_WEIGHT, OFFSET = 0.9, 0.45, -0.12
"""The estimate as a logistic regression sees it, fitted to the same outputs: log-odds × SHARPNESS +
COUNT_WEIGHT × ln(occurrences) + OFFSET. Of two equally long matches the more frequent is right more often."""

LONGEST_BRANCH = 16
"""Tokens of a continuation that leaves the chosen one."""
MIN_BRANCH = 0.02
"""A branch ends where the survival of its path falls below this."""


@dataclass(slots=True)
class Matches:
    """Earlier occurrences of a text's end in one index, newest first.

    `ends`: where they end. `lengths`: how many tokens match. `past`: they are in past outputs, not in the
    request's own text.
    """

    index: SuffixIndex
    ends: list[int]
    lengths: list[int]
    past: bool


def longest_matches(
    index: SuffixIndex, text: SuffixIndex, shortest: int, limit: int, min_probability: float = 0.0
) -> Matches | None:
    """The newest occurrences in `index` of the end of `text`, at the deepest level of grams that has any.

    At most `limit` occurrences are looked at, and none that matches fewer than `shortest` tokens is kept.
    None also if no vote about them could be as likely right as `min_probability`, which is seen before
    anything is measured. `index` may be `text`; otherwise it is one of past outputs, and its levels must be
    among the text's.
    """
    levels, past = index.levels, index is not text
    for level in reversed(range(len(levels))):
        width = levels[level]
        if len(text) < width:
            continue
        found = index.occurrences(level, text, limit)
        if found:
            deeper = levels[level + 1] if level + 1 < len(levels) else REACH
            if min_probability and _unanimous(len(found), past)[deeper - 1] < min_probability:
                return None
            tail, least = text.tail(), max(width, shortest)
            short = deeper if deeper < REACH else 0  # longer matches would have been found a level deeper
            lengths = [index.common(end, tail, short) for end in found]
            if min(lengths) < least:
                good = [i for i, length in enumerate(lengths) if length >= least]
                found, lengths = [found[i] for i in good], [lengths[i] for i in good]
            if found:
                return Matches(index, found, lengths, past)
        if width <= shortest:
            break
    return None


@dataclass(slots=True)
class Occurrences:
    """All occurrences that vote: the tokens after each until its text ends (at most REACH), its end in its
    index, the length of the match, and its weight. The first `own` are in the request's own text.
    """

    texts: list[array[int]]
    ends: list[int]
    lengths: list[int]
    weights: list[float]
    own: int

    def __len__(self) -> int:
        return len(self.ends)


def weighed(matches: Sequence[Matches]) -> Occurrences:
    """All occurrences with their weights: longer and newer ones weigh more."""
    found = Occurrences([], [], [], [], 0)
    longest = max(max(group.lengths) for group in matches)
    for group in matches:
        by = PAST_WEIGHT if group.past else 1.0
        found.weights += [
            by * LENGTH_WEIGHT ** (length - longest) / rank for rank, length in enumerate(group.lengths, 1)
        ]
        found.texts += map(group.index.following, group.ends)
        found.ends += group.ends
        found.lengths += group.lengths
        if not group.past:
            found.own = len(found)
    return found


@dataclass(slots=True)
class Continuation:
    """The chosen chain, the estimate for each token given those before it, and facts about the match.

    `leader`: the occurrence that it follows. `agree`: the share of the weight behind the first token.
    `partings`: which of the others leave it, after how many tokens of it.
    """

    tokens: list[int]
    confidence: list[float]
    occurrences: Occurrences
    leader: int
    agree: float
    partings: list[tuple[int, int]]

    @property
    def match_length(self) -> int:
        return self.occurrences.lengths[self.leader]

    @property
    def count(self) -> int:
        """The occurrences that voted."""
        return len(self.occurrences)

    @property
    def past(self) -> bool:
        """Whether it comes from a past output."""
        return self.leader >= self.occurrences.own

    @property
    def place(self) -> int:
        """Its position in its index."""
        return self.occurrences.ends[self.leader]


def vote(matches: Sequence[Matches], limit: int, min_survival: float = 0.0) -> Continuation | None:
    """The continuation that weighs most, at most `limit` (≤ REACH) tokens.

    It ends where its survival falls below `min_survival`, but not before one token.

    The heaviest first token wins, then the chain follows the heaviest occurrence that has it. Where that one
    reaches the end of the request's text the chain goes on with itself, as a text that repeats with that
    period would. None when nothing followed any occurrence.
    """
    occurrences = weighed(matches)
    leader = _leader(occurrences)
    if leader < 0:
        return None
    found = _follow(occurrences, leader, limit, min_survival, goes_round=leader < occurrences.own)
    _shorten(found.tokens, found.confidence, min_survival)
    return found


def _leader(occurrences: Occurrences) -> int:
    """The heaviest occurrence among those whose first token weighs most; -1 when nothing followed any."""
    totals: dict[int, float] = {}
    firsts = [text[0] if text else SEPARATOR for text in occurrences.texts]
    for first, weight in zip(firsts, occurrences.weights, strict=True):
        if first != SEPARATOR:
            totals[first] = totals.get(first, 0.0) + weight
    if not totals:
        return -1
    chosen = max(totals, key=totals.__getitem__)
    with_it = [i for i, first in enumerate(firsts) if first == chosen]
    return max(with_it, key=occurrences.weights.__getitem__)


def _follow(
    occurrences: Occurrences, leader: int, limit: int, min_survival: float = 0.0, *, goes_round: bool
) -> Continuation:
    """What followed the `leader`, at most `limit` tokens and no more than would survive if all agreed.

    Token i's confidence is the share, raised to DISSENT, of the weight still in agreement that agrees on it,
    times 1 - UNCERTAINTY / (length + i): drafted tokens count into the match, and text of other outputs is
    trusted less. An occurrence whose text has ended agrees with everything. `goes_round`: where the leader's
    text ends the chain goes on with itself.
    """
    tokens = occurrences.texts[leader][:limit]
    if goes_round and len(tokens) < limit:
        tokens = (tokens * (limit // len(tokens) + 1))[:limit]
    length, count, past = occurrences.lengths[leader], len(occurrences), leader >= occurrences.own
    confidence = _unanimous(count, past)[length : length + len(tokens)]
    _shorten(tokens, confidence, min_survival)
    partings: list[tuple[int, int]] = []
    for i, text in enumerate(occurrences.texts):
        if text and text[0] != tokens[0]:
            partings.append((0, i))
        elif i != leader:
            same = common_prefix(text, tokens)
            if same < min(len(text), len(tokens)):
                partings.append((same, i))
    agree, remaining = 1.0, sum(occurrences.weights)
    partings.sort()
    for at, leaving in groupby(partings, itemgetter(0)):
        before = remaining
        for _, i in leaving:
            remaining -= occurrences.weights[i]
        share = remaining / before
        if share < 1.0:
            confidence[at] = fitted(share**DISSENT * trust(length + at, past), count)
        if not at:
            agree = share
    return Continuation(tokens.tolist(), confidence, occurrences, leader, agree, partings)


def _shorten(tokens: MutableSequence[int], confidence: list[float], min_survival: float) -> None:
    """End a chain where its survival falls below `min_survival`, but not before one token."""
    keep = max(1, _reaching(confidence, min_survival)) if min_survival else len(tokens)
    del tokens[keep:], confidence[keep:]


def _reaching(confidence: Sequence[float], survival: float) -> int:
    """The number of tokens whose survival is at least `survival`."""
    return bisect_right(list(accumulate(confidence, mul)), -survival, key=neg)


def trust(length: int, past: bool) -> float:
    """The estimate for a token after a match of `length` tokens if nothing disagrees."""
    doubt = (PAST_UNCERTAINTY if past else UNCERTAINTY) / max(length, 1)
    return max(1.0 - doubt, 0.0)


def fitted(raw: float, count: int) -> float:
    """The estimate corrected by the logistic regression, if `count` occurrences vote."""
    odds = float((raw / max(1.0 - raw, 1e-3)) ** SHARPNESS * float(count) ** COUNT_WEIGHT) * exp(OFFSET)
    return odds / (1.0 + odds)


@cache
def _unanimous(count: int, past: bool) -> list[float]:
    """The estimate after a match of 0, 1, 2 … tokens, if `count` occurrences agree."""
    return [fitted(trust(length, past), count) for length in range(2 * REACH)]


# --- branches, for targets that verify trees -----------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Branch:
    """Another continuation: it leaves the likeliest one after `after` tokens of that; `confidence[i]` is the
    estimate for its token i given those before it.
    """

    after: int
    tokens: Sequence[int]
    confidence: Sequence[float]


def branches(chosen: Continuation, most: int, min_survival: float = 0.0) -> list[Branch]:
    """The `most` likeliest continuations that leave the chosen one, best first, up to the token whose
    survival falls below `min_survival`.
    """
    occurrences, least = chosen.occurrences, max(min_survival, MIN_BRANCH)
    survival = [1.0, *accumulate(chosen.confidence, mul)]
    remaining = sum(occurrences.weights)
    rated: list[tuple[float, float, int, list[int]]] = []
    for at, leaving in groupby(chosen.partings, itemgetter(0)):
        if at >= len(chosen.tokens):
            break
        groups: dict[int, list[int]] = {}  # by the token that they leave with
        for _, i in leaving:
            groups.setdefault(occurrences.texts[i][at], []).append(i)
        before = remaining
        for members in groups.values():
            weight = sum(occurrences.weights[i] for i in members)
            remaining -= weight
            share = (weight / before) ** DISSENT
            if survival[at] * share >= least:
                rated.append((survival[at] * share, share, at, members))
    rated.sort(key=itemgetter(0), reverse=True)
    found: list[Branch] = []
    for _, share, at, members in rated[:most]:
        branch = _branch(occurrences, members, at, share)
        keep = _reaching([survival[at], *branch.confidence], least) - 1
        if keep > 0:
            found.append(Branch(at, branch.tokens[:keep], branch.confidence[:keep]))
    return found


def _branch(occurrences: Occurrences, members: Sequence[int], at: int, share: float) -> Branch:
    """The continuation of the heaviest of the `members`, which leave the chosen chain at `at` with one
    token.
    """
    group = Occurrences(
        texts=[occurrences.texts[i][at:] for i in members],
        ends=[occurrences.ends[i] + at for i in members],
        lengths=[occurrences.lengths[i] + at for i in members],
        weights=[occurrences.weights[i] for i in members],
        own=sum(i < occurrences.own for i in members),
    )
    leader = max(range(len(members)), key=group.weights.__getitem__)
    found = _follow(group, leader, LONGEST_BRANCH, goes_round=False)
    found.confidence[0] = fitted(share * trust(group.lengths[leader], found.past), len(members))
    return Branch(at, found.tokens, found.confidence)


@dataclass(frozen=True, slots=True)
class Tree:
    """A tree as `types.Draft` has it: parents come before children, -1 is the last committed token."""

    tokens: tuple[int, ...]
    parents: tuple[int, ...]
    confidence: tuple[float, ...]


def grow(
    tokens: Sequence[int],
    confidence: Sequence[float],
    branches: Sequence[Branch],
    *,
    limit: int,
    min_survival: float,
) -> Tree:
    """The chain and its branches as one tree of at most `limit` tokens: those with the highest survival, in
    that order, as long as it is at least `min_survival`; one token in any case.
    """
    nodes: list[tuple[int, int, float, float]] = []  # token, parent, confidence, survival
    children: dict[tuple[int, int], int] = {}

    def add(parent: int, token: int, probability: float) -> int:
        known = children.get((parent, token))
        if known is not None:
            return known
        survival = probability if parent < 0 else nodes[parent][3] * probability
        nodes.append((token, parent, probability, survival))
        children[parent, token] = len(nodes) - 1
        return len(nodes) - 1

    node = -1
    main = [
        node := add(node, token, probability) for token, probability in zip(tokens, confidence, strict=True)
    ]
    for branch in branches:
        node = main[branch.after - 1] if branch.after else -1
        for token, probability in zip(branch.tokens, branch.confidence, strict=True):
            node = add(node, token, probability)
    order = sorted(range(len(nodes)), key=lambda i: nodes[i][3], reverse=True)[:limit]
    order = [i for rank, i in enumerate(order) if not rank or nodes[i][3] >= min_survival]
    place = {i: at for at, i in enumerate(order)} | {-1: -1}
    return Tree(
        tuple(nodes[i][0] for i in order),
        tuple(place[nodes[i][1]] for i in order),
        tuple(nodes[i][2] for i in order),
    )
