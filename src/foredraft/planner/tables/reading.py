# cython: language_level=3, annotation_typing=False, initializedcheck=False, cdivision=True, cpow=True
"""A draft's tokens as the tables have them, looked up once: a draft is estimated before a forward, and scored
after it.

A forward leaves nothing of this in the processor's caches, and then it is memory that takes time. So what is
known of a token is a row of `_ROW` numbers, one line of a cache, and readings are used again and again.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from foredraft.planner.tables.agreement import Agreement, log_odds
from foredraft.planner.tables.beta import PRIOR_WEIGHT, cautious, posterior
from foredraft.planner.tables.cells import MOST_MATCHED, Cells
from foredraft.planner.tables.lexical import NONE, Lexical, moved
from foredraft.types import Draft

NEGLIGIBLE = 0.005
"""Survival below which a token is as good as hopeless."""

_DEFAULT_CONFIDENCE = 0.6
_LEAST, _MOST = 0.02, 0.98  # of a prior

_AT_FIRST = 64
"""Tokens that a reading has room for before it grows."""

# Of a row: the token, its cell, the drafter's own estimate, what `lexical` adds to its log-odds, its chance
# alone; the log-odds of that and of the surest token beside it, and whether that is the same token.
_ROW = 8
_TOKEN, _CELL, _PRIOR, _ODDS, _ALONE, _OWN, _OTHER, _SAME = range(_ROW)

# For compiled code.
_MOST_MATCHED, _NONE, _PRIOR_WEIGHT = MOST_MATCHED, NONE, PRIOR_WEIGHT


class Reading:
    """A draft after the text's token `last`, by the tables of all sources. To be given one with `begin`."""

    def __init__(self, cells: Cells, agreement: Agreement, lexical: Lexical) -> None:
        self._cells = cells
        self._agreement = agreement
        self._lexical = lexical
        self._array = array("d", bytes(8 * _ROW * _AT_FIRST))
        self._rows: memoryview[float] = memoryview(self._array)

    def begin(self, draft: Draft, last: int) -> None:
        """It is about this draft from now on."""
        self.source: str = draft.source
        self.parents = None if draft.parents is None else tuple(draft.parents)
        self._tokens = tuple(draft.tokens)  # a drafter of somebody else's may give lists
        self.count = len(self._tokens)
        self.company = -1
        """So many of its first tokens have one of another draft beside them; -1: not known yet."""
        self._confidence = tuple(draft.confidence)
        self._sure = len(self._confidence)
        self._depths = None if self.parents is None else depths(self.parents)
        self._last = last
        self._filled = self._moved = 0
        self._place = self._cells.place(self.source)
        self._weights = self._agreement.place(self.source)
        features = draft.features
        self._match = min(max(int(features.get("match_length", 0)), 0), _MOST_MATCHED)
        if features.get("from_store"):
            self._origin = 3
        else:
            from_prompt = features.get("from_prompt")
            self._origin = 2 if from_prompt is None else int(bool(from_prompt))
        if self.count * _ROW > len(self._array):
            self._array = array("d", bytes(8 * _ROW * self.count))
            self._rows = memoryview(self._array)

    def _fill(self, count: int) -> None:
        """Look the first `count` tokens up."""
        for i in range(self._filled, count):
            at = i * _ROW
            confidence = self._confidence[i] if i < self._sure else _DEFAULT_CONFIDENCE
            self._rows[at] = self._tokens[i]
            self._rows[at + _CELL] = self._cells.cell(self._place, self._matched(i), confidence)
            self._rows[at + _PRIOR] = min(_MOST, max(_LEAST, confidence))
        self._filled = max(self._filled, count)

    def _matched(self, i: int) -> int:
        """How many tokens before token i match, at most `MOST_MATCHED`."""
        match = self._match + (i if self._depths is None else self._depths[i])
        return match if match < _MOST_MATCHED else _MOST_MATCHED

    def _need(self, i: int) -> None:
        """Have token i looked up, and the one that comes after it."""
        if i >= self._filled - 1:
            self._fill(min(i + 2, self.count))

    def _before(self, i: int) -> int:
        """The token that token i comes after."""
        at = i - 1 if self.parents is None else self.parents[i]
        return self._last if at < 0 else int(self._rows[at * _ROW])

    def _following(self, i: int) -> int:
        """Of a chain the token that comes after token i."""
        if self.parents is not None or i + 1 >= self.count:
            return _NONE
        return int(self._rows[(i + 1) * _ROW])

    def odds(self, i: int) -> float:
        """What `lexical` adds to the log-odds of token i, as it was when this was first asked."""
        self._need(i)
        for at in range(self._moved, i + 1):
            self._rows[at * _ROW + _ODDS] = self._lexical.odds(
                self._before(at),
                int(self._rows[at * _ROW]),
                self._following(at),
                self._matched(at),
                self._origin,
            )
        self._moved = max(self._moved, i + 1)
        return self._rows[i * _ROW + _ODDS]

    def alone(self, i: int, caution: float) -> float:
        """What its drafter's record says of token i: P(it is accepted | its ancestors were), `caution`
        standard deviations below the mean.
        """
        self._need(i)
        cell = int(self._rows[i * _ROW + _CELL])
        prior = self._rows[i * _ROW + _PRIOR]
        return posterior(self._cells.right(cell), self._cells.wrong(cell), prior, caution)

    def chance(self, i: int, caution: float) -> float:
        """P(token i is accepted | its ancestors were), if no other draft has anything to say."""
        return moved(self.alone(i, caution), self.odds(i))

    def chances(self, caution: float) -> list[float]:
        """`chance` of each token."""
        return [self.chance(i, caution) for i in range(self.count)]

    def estimate(self, caution: float, least: float = NEGLIGIBLE) -> list[float]:
        """P(token i and all its ancestors are accepted), 0 after a chain's falls under `least`. The first
        token's is told in any case.
        """
        if self.parents is not None:
            return self._estimate_tree(caution)
        survivals = [0.0] * self.count
        survival = 1.0
        for i in range(self.count):
            survival *= self.chance(i, caution)
            if survival < least and i:
                break
            survivals[i] = survival
        return survivals if self.company < 1 else self._together(survivals, caution)

    def _together(self, survivals: list[float], caution: float) -> list[float]:
        """What these estimates are with what the other drafts say."""
        company, together, alone = self.company, 1.0, survivals[self.company - 1]
        for i in range(company):
            at = i * _ROW
            mixed = self._agreement.chance(
                self._weights, self._rows[at + _OWN], self._rows[at + _OTHER], self.agrees(i)
            )
            cell = int(self._rows[at + _CELL])
            total = self._cells.right(cell) + self._cells.wrong(cell) + _PRIOR_WEIGHT
            together *= moved(cautious(mixed, total, caution), self.odds(i))
            survivals[i] = together
        rest = together / alone if alone else 0.0
        for i in range(company, self.count):
            survivals[i] *= rest
        return survivals

    def _estimate_tree(self, caution: float) -> list[float]:
        survivals: list[float] = []
        for i, parent in enumerate(self.parents or ()):
            chance = self.chance(i, caution)
            survivals.append(chance if parent < 0 else survivals[parent] * chance)
        return survivals

    def add(self, i: int, chance: float, right: bool) -> None:
        """Token i was right, or it was not; it had been given this chance."""
        self._need(i)
        self._cells.add(int(self._rows[i * _ROW + _CELL]), right)
        error = (1.0 if right else 0.0) - chance
        token = int(self._rows[i * _ROW])
        self._lexical.add(
            self._before(i), token, self._following(i), self._matched(i), self._origin, error=error
        )

    def learn(self, i: int, right: bool) -> float:
        """As `add`, of token i of a chain, with what another draft says beside it. Returns the chance that it
        had been given.
        """
        if i < self.company:
            at = i * _ROW
            own, other = self._rows[at + _OWN], self._rows[at + _OTHER]
            mixed = self._agreement.add(self._weights, own, other, self.agrees(i), right)
            chance = moved(mixed, self.odds(i))
        else:
            chance = self.chance(i, 0.0)
        self.add(i, chance, right)
        return chance

    def said(self, i: int) -> int:
        """Token i."""
        self._need(i)
        return int(self._rows[i * _ROW])

    def agrees(self, i: int) -> bool:
        """Whether the surest token beside token i, of the first `company`, is the same one."""
        return self._rows[i * _ROW + _SAME] > 0.0

    def common(self, other: Reading) -> int:
        """How many of their first tokens are the same."""
        most, same = min(self.count, other.count), 0
        while same < most and self.said(same) == other.said(same):
            same += 1
        return same

    def speak(self, count: int) -> None:
        """Work out what the drafter's record says of its first `count` tokens, none of a tree: others may
        have one beside them.
        """
        self.spoken = 0 if self.parents is not None else min(count, self.count)
        for i in range(self.spoken):
            self._rows[i * _ROW + _ALONE] = self.alone(i, 0.0)

    def meet(self, readings: Sequence[Reading]) -> None:
        """Look at what the others, which have spoken, have beside the first tokens, each as far as it agreed
        before.
        """
        self.company = 0
        others = [reading for reading in readings if reading is not self]
        while others and self.company < self.spoken:
            at = self.company * _ROW
            surest, same = -1.0, False
            agreeing: list[Reading] = []
            for other in others:
                if self.company >= other.spoken:
                    continue
                agrees = other._rows[at] == self._rows[at]
                if agrees:
                    agreeing.append(other)
                if other._rows[at + _ALONE] > surest:
                    surest, same = other._rows[at + _ALONE], agrees
            if surest < 0.0:
                break
            self._rows[at + _OWN] = log_odds(self._rows[at + _ALONE])
            self._rows[at + _OTHER] = log_odds(surest)
            self._rows[at + _SAME] = 1.0 if same else 0.0
            self.company += 1
            others = agreeing


def meet(readings: Sequence[Reading]) -> None:
    """Have each draft know of the others, as far as they have a token where it has one."""
    count = _shared(readings)
    for reading in readings:
        reading.speak(count)
    for reading in readings:
        reading.meet(readings)


def _shared(readings: Sequence[Reading]) -> int:
    """So many of the first tokens of a draft may have another one's beside them: as many as any two chains
    begin with in common, and one more. 0 if there are no two chains.
    """
    chains = [reading for reading in readings if reading.parents is None]
    if len(chains) < 2:
        return 0
    longest = 0
    for i, reading in enumerate(chains):
        for other in chains[:i]:
            longest = max(longest, reading.common(other))
    return longest + 1


def depths(parents: Sequence[int]) -> list[int]:
    """How many ancestors each node of a tree has."""
    found: list[int] = []
    for parent in parents:
        found.append(0 if parent < 0 else found[parent] + 1)
    return found
