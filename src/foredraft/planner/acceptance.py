"""How likely each draft token is to be accepted, learnt from what the target wrote.

A table of Beta counts holds how often a drafter was right, by the length of its match and by its own
confidence: drafters know different things, and none is taken at its word. One online logistic regression
corrects that by what another draft proposes at the same place and by the tokens themselves (hashed sparse
features, McMahan et al. 2013; step sizes by AdaGrad, Duchi et al. 2011, eq. 1).

Every candidate is scored against what the target writes, verified or not (shadow scoring). So a drafter that
was wrong for a while is still measured while it is not used. Memory: 4 MB for each engine.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Mapping, Sequence
from math import exp, log, log2, sqrt

from foredraft.types import Draft

MATCH_EDGES = (2, 3, 4, 6, 8, 12, 16, 24, 32)
"""Tokens of a match: the rows of the table."""

CONFIDENCE_EDGES = (0.3, 0.5, 0.7, 0.8, 0.9, 0.95, 0.98)
NO_CONFIDENCE = 0.6
"""Taken where a drafter gives no confidence."""

PRIOR_WEIGHT = 8.0
"""Observations that a drafter's own confidence counts for."""

FORGET_AT = 256.0
"""Observations at which counts are halved, so that they follow the text as it changes."""

STORED_WEIGHT = 32.0
"""Observations that the counts of an earlier run stand for at most: the next texts may be others."""

STEP, LEAST_STEP = 0.3, 0.02
"""Of the regression, for a weight that has seen no error, and at least."""

MIX_STEP = 0.01
NEGLIGIBLE = 0.005
"""Survival below which the rest of a chain counts as 0."""

_PLACES = 1 << 17
_STORED_WEIGHTS = 2048

Cell = tuple[str, int, int]
Mix = tuple[str, bool]


def caution(requests: int) -> float:
    """Standard deviations to take off a probability. The more drafts compete for a round, the more the best
    of them are those whose probability is overestimated.
    """
    return 1.0 + 0.15 * log2(requests) if requests > 1 else 1.0


def sampled(drafts: Sequence[Draft]) -> Draft | None:
    """The draft that must be verified whole, if there is one: sampled from its drafter's distribution.

    The rejection and block rules are lossless only if whether a token is verified does not depend on what was
    sampled, which a choice by confidence would. Its length was limited before.
    """
    return next((draft for draft in drafts if draft.probs is not None), None)


class _Reading:
    """A candidate and what was looked up of its tokens so far. `at[i]`: table cell, weights' places, and the
    log-odds that the weights add. `beside[i]`: (log-odds of the token by its own drafter, of the likeliest
    token beside it, whether that is the same token), where another draft agrees up to there.
    """

    __slots__ = ("at", "beside", "confidence", "depth", "draft", "last", "match", "origin", "source")

    def __init__(self, draft: Draft, last: int) -> None:
        features = draft.features
        self.draft = draft
        self.last = last
        self.source = draft.source
        self.confidence = draft.confidence
        self.match = int(features.get("match_length", 0))
        self.origin = 3 if features.get("from_store") else int(features.get("from_prompt", 2))
        self.depth = None if draft.parents is None else depths(draft.parents)
        self.at: list[tuple[Cell, tuple[int, ...], float]] = []
        self.beside: list[tuple[float, float, bool]] = []


class Acceptance:
    """The acceptance model of one engine, for all drafters and requests."""

    def __init__(self) -> None:
        self._counts: dict[Cell, list[float]] = {}
        self._weights = [0.0] * _PLACES
        self._squares = [0.0] * _PLACES
        self._mixes: dict[Mix, list[float]] = {}
        self._readings: dict[int, list[_Reading]] = {}

    def survivals(
        self,
        request: int,
        drafts: Sequence[Draft],
        last: int,
        deviations: float = 0.0,
        least: float = NEGLIGIBLE,
    ) -> list[list[float]]:
        """For each draft the probability that token i and all its ancestors are accepted; 0 after a chain's
        falls under `least`. `last` is the text's last token; `deviations`: standard deviations below the
        posterior mean. The drafts are kept, to be scored with the round's outcome.
        """
        readings = self._readings[request] = [_Reading(draft, last) for draft in drafts]
        if len(readings) > 1:
            self._compare(readings)
        return [self._survival(reading, deviations, least) for reading in readings]

    def _survival(self, reading: _Reading, deviations: float, least: float) -> list[float]:
        draft, survival = reading.draft, 1.0
        found = [0.0] * len(draft.tokens)
        if draft.parents is not None:
            for i, parent in enumerate(draft.parents):
                above = 1.0 if parent < 0 else found[parent]
                found[i] = above * self._probability(reading, i, deviations) if above else 0.0
            return found
        for i in range(len(found)):
            survival *= self._probability(reading, i, deviations)
            if survival < least and i:
                break
            found[i] = survival
        return found

    def _probability(self, reading: _Reading, i: int, deviations: float) -> float:
        """P(token i is accepted | its ancestors are)."""
        cell, _, odds = self._look_up(reading, i)
        mean, total = self._mean(cell, reading, i)
        if i < len(reading.beside):
            own, other, same = reading.beside[i]
            mean = self._mixed((cell[0], same), own, other)
        if deviations:
            mean -= deviations * sqrt(mean * (1.0 - mean) / (total + 1.0))
        if mean <= 0.0:
            return 0.0
        return mean / (mean + (1.0 - mean) * exp(-odds)) if odds else mean

    def _mean(self, cell: Cell, reading: _Reading, i: int) -> tuple[float, float]:
        """The posterior mean of the table's cell, with the drafter's confidence as prior, and its weight."""
        confidence = reading.confidence[i] if i < len(reading.confidence) else NO_CONFIDENCE
        right, wrong = self._counts.get(cell, (0.0, 0.0))
        total = right + wrong + PRIOR_WEIGHT
        return (right + PRIOR_WEIGHT * min(0.98, max(0.02, confidence))) / total, total

    def _look_up(self, reading: _Reading, i: int) -> tuple[Cell, tuple[int, ...], float]:
        while len(reading.at) <= i:
            reading.at.append(self._looked_up(reading, len(reading.at)))
        return reading.at[i]

    def _looked_up(self, reading: _Reading, i: int) -> tuple[Cell, tuple[int, ...], float]:
        draft = reading.draft
        tokens, parents = draft.tokens, draft.parents
        token, before, after = tokens[i], i - 1, -1
        if parents is not None:
            before = parents[i]
        elif i + 1 < len(tokens):
            after = tokens[i + 1]
        previous = tokens[before] if before >= 0 else reading.last
        match = min(reading.match + (i if reading.depth is None else reading.depth[i]), 32)
        confidence = reading.confidence[i] if i < len(reading.confidence) else NO_CONFIDENCE
        cell = reading.source, bisect(MATCH_EDGES, match), bisect(CONFIDENCE_EDGES, confidence)
        places = _places(token, previous, after, min(match, 4), reading.origin)
        weights = self._weights
        a, b, c, d, e, f = places
        odds = weights[a] + weights[b] + weights[c] + weights[d] + weights[e] + weights[f]
        return cell, places, odds

    def _compare(self, readings: Sequence[_Reading]) -> None:
        """Note for each token the likeliest token that another chain, which agrees up to there, has beside
        it.
        """
        chains = [reading for reading in readings if reading.draft.parents is None]
        for reading in chains:
            others = [other for other in chains if other is not reading]
            tokens = reading.draft.tokens
            for i, token in enumerate(tokens):
                others = [other for other in others if len(other.draft.tokens) > i]
                if not others:
                    break
                best, same = max(
                    (self._mean(self._look_up(other, i)[0], other, i)[0], other.draft.tokens[i] == token)
                    for other in others
                )
                own = self._mean(self._look_up(reading, i)[0], reading, i)[0]
                reading.beside.append((_log_odds(own), _log_odds(best), same))
                others = [other for other in others if other.draft.tokens[i] == token]

    def _mixed(self, key: Mix, own: float, other: float) -> float:
        bias, of_own, of_other = self._mixes.get(key) or _first_mix(key)
        return 1.0 / (1.0 + exp(-bias - of_own * own - of_other * other))

    def score(self, request: int, tokens: Sequence[int]) -> list[tuple[str, int, int]]:
        """Learn from the tokens that the target wrote. Only tokens whose ancestors are right count.

        Returns for each candidate its source, how many of its tokens were right, and 1 if one was wrong.
        """
        return [
            (reading.source, *self._score(reading, tokens)) for reading in self._readings.pop(request, ())
        ]

    def _score(self, reading: _Reading, emitted: Sequence[int]) -> tuple[int, int]:
        if reading.draft.parents is not None:
            return self._score_tree(reading, emitted)
        drafted = reading.draft.tokens
        for i, token in enumerate(emitted):
            if i == len(drafted):
                return i, 0
            right = drafted[i] == token
            self._learn(reading, i, right)
            if not right:
                return i, 1
        return len(emitted), 0

    def _score_tree(self, reading: _Reading, emitted: Sequence[int]) -> tuple[int, int]:
        tokens, parents = reading.draft.tokens, reading.draft.parents or ()
        node, longest = -1, 1 + max(reading.depth or (0,))
        for depth, token in enumerate(emitted):
            children = [i for i, parent in enumerate(parents) if parent == node]
            node = next((i for i in children if tokens[i] == token), -1)
            for i in children:
                self._learn(reading, i, i == node)
            if node < 0:
                return depth, int(depth < longest)
        return len(emitted), 0

    def _learn(self, reading: _Reading, i: int, right: bool) -> None:
        cell, places, odds = self._look_up(reading, i)
        mean, _ = self._mean(cell, reading, i)
        if i < len(reading.beside):
            own, other, same = reading.beside[i]
            mean = self._learn_mix((cell[0], same), own, other, right)
        counts = self._counts.setdefault(cell, [0.0, 0.0])
        counts[0 if right else 1] += 1.0
        if counts[0] + counts[1] > FORGET_AT:
            counts[0] /= 2.0
            counts[1] /= 2.0
        error = right - mean / (mean + (1.0 - mean) * exp(-odds))
        weights, squares, squared = self._weights, self._squares, error * error
        for place in places:
            squares[place] = seen = squares[place] + squared
            weights[place] += error * max(STEP / (1.0 + sqrt(seen)), LEAST_STEP)

    def _learn_mix(self, key: Mix, own: float, other: float, right: bool) -> float:
        """Returns the probability before."""
        mix = self._mixes.setdefault(key, _first_mix(key))
        mean = self._mixed(key, own, other)
        step = MIX_STEP * (right - mean)
        mix[0] += step
        mix[1] += step * own
        mix[2] += step * other
        return mean

    def forget(self, request: int) -> None:
        """The request is over, or its candidates are not verified."""
        self._readings.pop(request, None)

    def state(self) -> dict[str, object]:
        """What was learnt, as a JSON object for `load_state`."""
        largest = sorted(
            (place for place, weight in enumerate(self._weights) if weight),
            key=lambda place: -abs(self._weights[place]),
        )[:_STORED_WEIGHTS]
        return {
            "counts": {
                "|".join(map(str, cell)): [round(it, 2) for it in counts]
                for cell, counts in self._counts.items()
            },
            "mixes": {f"{source}|{same:d}": mix for (source, same), mix in self._mixes.items()},
            "weights": {str(place): round(self._weights[place], 3) for place in sorted(largest)},
        }

    def load_state(self, state: Mapping[str, object]) -> None:
        """Begin with the `state` of an earlier run. Entries that are not of its form are left out."""
        for name, counts in _entries(state, "counts", 2):
            source, match, confidence = name.rsplit("|", 2)
            scale = min(1.0, STORED_WEIGHT / max(sum(counts), 1.0))
            self._counts[source, int(match), int(confidence)] = [max(it, 0.0) * scale for it in counts]
        for name, mix in _entries(state, "mixes", 3):
            source, same = name.rsplit("|", 1)
            self._mixes[source, same == "1"] = mix
        for name, [weight] in _entries(state, "weights", 1):
            if int(name) < _PLACES:
                self._weights[int(name)] = weight


def _entries(state: Mapping[str, object], name: str, count: int) -> list[tuple[str, list[float]]]:
    """The items of one of the state's objects whose values are `count` finite numbers of a likely size."""
    found, entries = [], state.get(name)
    parts, largest = {"counts": (3, FORGET_AT), "mixes": (2, 8.0), "weights": (1, 20.0)}[name]
    for key, value in entries.items() if isinstance(entries, Mapping) else ():
        numbers = value if isinstance(value, list) else [value]
        right = len(numbers) == count and all(
            isinstance(it, int | float) and not isinstance(it, bool) and abs(it) <= largest for it in numbers
        )
        places = key.rsplit("|", parts - 1)[-(parts - 1) or 0 :]
        if (
            right
            and all(place.isdecimal() and len(place) < 8 for place in places)
            and key.count("|") >= parts - 1
        ):
            found.append((key, [float(it) for it in numbers]))
    return found


def _first_mix(key: Mix) -> list[float]:
    """Constant and weights of both log-odds before anything was learnt: agreement makes a token likelier."""
    return [0.0, 0.7, 0.6] if key[1] else [-0.7, 0.7, -0.15]


def _places(token: int, previous: int, following: int, match: int, origin: int) -> tuple[int, ...]:
    """Places of the weights of a token: itself; by match and origin; the token before it, alone and by match;
    and the token after it.
    """
    own, last = token * 0x9E3779B1, previous * 0x85EBCA6B + 0x27D4EB2F
    mask = _PLACES - 1
    return (
        (own >> 5) & mask,
        ((own + 0x632BE5AB * (match + 1)) >> 5) & mask,
        ((own + 0x7F4A7C15 * (origin + 1)) >> 6) & mask,
        (last >> 5) & mask,
        ((last + 0x632BE5AB * (match + 1)) >> 6) & mask,
        ((own ^ (following + 2) * 0xC2B2AE35) >> 7) & mask,
    )


def _log_odds(probability: float) -> float:
    probability = min(0.998, max(0.002, probability))
    return log(probability / (1.0 - probability))


def depths(parents: Sequence[int]) -> list[int]:
    """Ancestors of each node of a tree."""
    found: list[int] = []
    for parent in parents:
        found.append(0 if parent < 0 else found[parent] + 1)
    return found


def depth_of(draft: Draft) -> int:
    """Tokens of a draft's longest path."""
    return len(draft.tokens) if draft.parents is None else 1 + max(depths(draft.parents))
