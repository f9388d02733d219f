"""The table that survival is looked up in: counts by source, length of the match and confidence.

A draft's tokens are looked up when they are compared, and again when the target has said what was right; the
place of each in the table is worked out once, and only as far down the draft as anybody asks.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Sequence

from foretoken.planner.agreement import Company
from foretoken.planner.beta import Counts
from foretoken.planner.lexical import NONE, Lexical, moved
from foretoken.types import Draft

_CONFIDENCE_EDGES = (0.3, 0.5, 0.7, 0.8, 0.9, 0.95, 0.98)
_MATCH_EDGES = (2, 3, 4, 6, 8, 12, 16, 24, 32)
_DEFAULT_CONFIDENCE = 0.6
_COLUMNS = len(_CONFIDENCE_EDGES) + 1
_ROWS = len(_MATCH_EDGES) + 1
_MOST_MATCHED = _MATCH_EDGES[-1]
_ROW_OF = [_COLUMNS * bisect(_MATCH_EDGES, length) for length in range(_MOST_MATCHED + 1)]

_LEAST, _MOST = 0.02, 0.98  # of a prior

NEGLIGIBLE = 0.005
"""Survival below which a token is as good as hopeless."""


class Cells:
    """Counts for each source, by length of the match and confidence."""

    def __init__(self) -> None:
        self._sources: dict[str, list[Counts]] = {}

    def of(self, source: str) -> list[Counts]:
        """A source's counts: one for each pair of buckets."""
        counts = self._sources.get(source)
        if counts is None:
            counts = self._sources[source] = [Counts() for _ in range(_ROWS * _COLUMNS)]
        return counts

    def export(self) -> dict[str, list[float]]:
        """As a JSON object: "source|match|confidence" → [right, wrong], of what was seen."""
        return {
            f"{source}|{at // _COLUMNS}|{at % _COLUMNS}": [round(cell.right, 3), round(cell.wrong, 3)]
            for source, counts in self._sources.items()
            for at, cell in enumerate(counts)
            if cell.right + cell.wrong > 0.0
        }

    def restore(self, name: str, right: float, wrong: float) -> None:
        """Begin with counts from `export`. What does not look like a name of it is left out."""
        source, *buckets = name.rsplit("|", 2)
        if len(buckets) != 2 or not all(bucket.isdecimal() for bucket in buckets):
            return
        row, column = int(buckets[0]), int(buckets[1])
        if row < _ROWS and column < _COLUMNS:
            self.of(source)[row * _COLUMNS + column] = Counts(max(0.0, right), max(0.0, wrong))


class Reading:
    """A draft's tokens, after the text's token `last`, as `cells` and `lexical` have them. `company`: what
    other drafts have beside them, once known.
    """

    def __init__(self, draft: Draft, last: int, cells: Cells, lexical: Lexical) -> None:
        self.draft = draft
        self._last = last
        self._lexical = lexical
        self.company: Company | None = None
        self._counts = cells.of(draft.source)
        self._match = int(draft.features.get("match_length", 0))
        self._depths = None if draft.parents is None else depths(draft.parents)
        self._origin = _origin(draft)
        self._odds: list[float] = []
        self._found: list[Counts] = []
        self._priors: list[float] = []

    def _upto(self, count: int) -> None:
        confidences, counts, begin, nested = self.draft.confidence, self._counts, self._match, self._depths
        found, priors, known = self._found, self._priors, len(confidences)
        for i in range(len(found), count):
            confidence = confidences[i] if i < known else _DEFAULT_CONFIDENCE
            match = begin + (i if nested is None else nested[i])
            row = _ROW_OF[min(max(match, 0), _MOST_MATCHED)]
            found.append(counts[row + _column(confidence)])
            priors.append(min(_MOST, max(_LEAST, confidence)))

    def counts(self, i: int) -> Counts:
        """What was seen of tokens like token i."""
        if i >= len(self._found):
            self._upto(i + 1)
        return self._found[i]

    def odds(self, i: int) -> float:
        """What `lexical` adds to the log-odds of token i, as it was when this was first asked."""
        lexical, origin = self._lexical, self._origin
        for at in range(len(self._odds), i + 1):
            before, token, following, match = self._around(at)
            self._odds.append(lexical.odds(before, token, following, match, origin))
        return self._odds[i]

    def _around(self, i: int) -> tuple[int, int, int, int]:
        """The token that token i comes after, itself, of a chain the one that comes next, and how many tokens
        before it match.
        """
        tokens, parents, nested = self.draft.tokens, self.draft.parents, self._depths
        if parents is not None and nested is not None:
            before = tokens[parents[i]] if parents[i] >= 0 else self._last
            return before, tokens[i], NONE, max(0, self._match + nested[i])
        following = tokens[i + 1] if i + 1 < len(tokens) else NONE
        return tokens[i - 1] if i else self._last, tokens[i], following, max(0, self._match + i)

    def alone(self, i: int, caution: float) -> float:
        """What its drafter's record says of token i: P(it is accepted | its ancestors were), `caution`
        standard deviations below the mean.
        """
        counts = self.counts(i)
        return counts.chance(self._priors[i], caution)

    def chance(self, i: int, caution: float) -> float:
        """P(token i is accepted | its ancestors were), if no other draft has anything to say."""
        return moved(self.alone(i, caution), self.odds(i))

    def add(self, i: int, chance: float, *, right: bool) -> None:
        """Token i was right, or it was not; it had been given this chance."""
        self.counts(i).add(right)
        before, token, following, match = self._around(i)
        error = (1.0 if right else 0.0) - chance
        self._lexical.add(before, token, following, match, self._origin, error=error)

    def estimate(self, caution: float, least: float = NEGLIGIBLE) -> list[float]:
        """P(token i and all its ancestors are accepted), 0 after a chain's falls under `least`. The first
        token's is told in any case.
        """
        survivals: list[float] = []
        parents, count = self.draft.parents, len(self.draft.tokens)
        if parents is not None:
            for i, parent in enumerate(parents):
                chance = self.chance(i, caution)
                survivals.append(chance if parent < 0 else survivals[parent] * chance)
            return survivals
        survival = 1.0
        for i in range(count):
            survival *= self.chance(i, caution)
            if survival < least and i:
                break
            survivals.append(survival)
        return survivals + [0.0] * (count - len(survivals))


def _column(confidence: float) -> int:
    """`bisect(_CONFIDENCE_EDGES, confidence)`, without a call for each token of a draft."""
    column = 0
    for edge in _CONFIDENCE_EDGES:
        if confidence < edge:
            break
        column += 1
    return column


def _origin(draft: Draft) -> int:
    """Where it is copied from: 0 what was generated, 1 the prompt, 2 nobody says, 3 past outputs."""
    if draft.features.get("from_store"):
        return 3
    from_prompt = draft.features.get("from_prompt")
    return 2 if from_prompt is None else int(bool(from_prompt))


def depths(parents: Sequence[int]) -> list[int]:
    """How many ancestors each node of a tree has."""
    found: list[int] = []
    for parent in parents:
        found.append(0 if parent < 0 else found[parent] + 1)
    return found
