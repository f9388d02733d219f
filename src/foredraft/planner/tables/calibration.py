# cython: language_level=3, annotation_typing=False, initializedcheck=False, cdivision=True, cpow=True
"""Survival: how likely each token of a draft is to be accepted, learnt from what was accepted before.

A draft token's chance, given that its ancestors were accepted, is looked up in a table of Beta counts with
forgetting (`cells`). The key is the drafter, how long its match is at that depth (a match grows with every
accepted token), and the drafter's own confidence: drafters know different things, and none is taken at its
word. Where another draft has a token at the same place, that changes the chance (`agreement`), and so does
which token it is (`lexical`).

Every candidate is scored against what the target emits, whether it was verified or not ("shadow scoring"),
so a source that was wrong for a while is still measured while it is not used, at no cost.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from foredraft.planner.tables.agreement import Agreement
from foredraft.planner.tables.cells import Cells
from foredraft.planner.tables.lexical import NONE, Lexical
from foredraft.planner.tables.reading import NEGLIGIBLE, Reading, depths, meet
from foredraft.planner.tables.reliability import ReliabilityTable
from foredraft.types import Draft, Outcome

STORED_WEIGHT = 32.0
"""Observations that a cell from an earlier run counts for, at most."""


class Score:
    """How a candidate did: tokens that were right, and 1 wrong unless it was right to its end (or the
    target's tokens ended first). A tree ends where its longest path does: a right token that nothing is built
    on stands beside a wrong one, and so the next is not right either.
    """

    def __init__(self, source: str, right: int, wrong: int) -> None:
        self.source = source
        self.right = right
        self.wrong = wrong


def sampled(drafts: Sequence[Draft]) -> Draft | None:
    """The draft that must be verified whole, if there is one: drawn at random from its drafter's
    distribution, for the rejection and block rules.

    Those rules are lossless only if whether a token is verified does not depend on what was drawn; a choice
    by the draft's own confidence would. Its length was limited before it was drawn.
    """
    for draft in drafts:
        if draft.probs is not None:
            return draft
    return None


def depth_of(draft: Draft) -> int:
    """The tokens of a draft's longest path: what a drafter that goes token by token takes its time for."""
    return len(draft.tokens) if draft.parents is None else 1 + max(depths(draft.parents))


class Survival:
    """Calibrated acceptance of drafts, for all sources of one engine."""

    def __init__(self) -> None:
        self._cells = Cells()
        self.lexical = Lexical()
        self.agreement = Agreement()
        self.reliability = ReliabilityTable()
        self._shadow: dict[int, list[Reading]] = {}
        self._spare: list[Reading] = []

    def _read(self, drafts: Sequence[Draft], last: int) -> list[Reading]:
        """Readings of these drafts, which `_done` takes back."""
        readings: list[Reading] = []
        for draft in drafts:
            if not self._spare:
                self._spare.append(Reading(self._cells, self.agreement, self.lexical))
            reading = self._spare.pop()
            reading.begin(draft, last)
            readings.append(reading)
        return readings

    def _done(self, readings: list[Reading]) -> None:
        self._spare += readings

    def conditional(self, draft: Draft, caution: float = 0.0, last: int = NONE) -> list[float]:
        """P(token i is accepted | its ancestors were), `caution` standard deviations below the posterior
        mean, of a draft after the token `last`.
        """
        readings = self._read([draft], last)
        found = readings[0].chances(caution)
        self._done(readings)
        return found

    def estimate(self, draft: Draft, caution: float = 0.0, last: int = NONE) -> list[float]:
        """P(token i and all its ancestors are accepted), never above its parent's. Once a chain's falls under
        `NEGLIGIBLE` the rest counts as 0: what is hopeless is not worth the time to say how much.
        """
        readings = self._read([draft], last)
        found = readings[0].estimate(caution, NEGLIGIBLE)
        self._done(readings)
        return found

    def estimates(
        self,
        drafts: Sequence[Draft],
        caution: float = 0.0,
        request: int | None = None,
        least: float = NEGLIGIBLE,
    ) -> list[list[float]]:
        """`estimate` of each of a request's drafts, of which one may be verified: all know of each other.
        `request`: they are those that it is remembered by. Under `least` no token is worth a row.
        """
        readings = None if request is None else self._shadow.get(request)
        fresh = self._read(drafts, NONE) if readings is None else []
        readings = fresh if readings is None else readings
        meet(readings)
        found: list[list[float]] = []
        for reading in readings:
            found.append(reading.estimate(caution, least))  # noqa: PERF401 - compiled, a loop knows types
        self._done(fresh)
        return found

    def remember(self, request: int, drafts: Sequence[Draft], last: int = NONE) -> None:
        """The candidates of this round, after the text's token `last`, to be scored with its outcome."""
        self.forget(request)
        self._shadow[request] = self._read(drafts, last)

    def score(self, request: int, outcome: Outcome) -> list[Score]:
        """Learn from what the target emitted. Only tokens whose ancestors were right say anything.

        Returns how each candidate did.
        """
        readings = self._shadow.pop(request, None)
        if not readings:
            return []
        tokens = outcome.tokens
        found: list[Score] = []
        for reading in readings:
            if reading.company < 0:
                meet(readings)
        for reading in readings:
            found.append(self._score(reading, tokens))  # noqa: PERF401 - as above
        self._done(readings)
        return found

    def _score(self, reading: Reading, emitted: Sequence[int]) -> Score:
        if reading.parents is not None:
            return self._score_tree(reading, emitted)
        for i, token in enumerate(emitted):
            if i == reading.count:
                return Score(reading.source, i, 0)
            right = reading.said(i) == token
            self.reliability.add(reading.learn(i, right), right)
            if not right:
                return Score(reading.source, i, 1)
        return Score(reading.source, len(emitted), 0)

    def _score_tree(self, reading: Reading, emitted: Sequence[int]) -> Score:
        parents = reading.parents or ()
        children, node = _children(parents), -1
        for depth, token in enumerate(emitted):
            tried = children.get(node, [])
            # The right token at this depth, if the draft has it: its children are tried next.
            node = -1
            for i in tried:
                if node < 0 and reading.said(i) == token:
                    node = i
            for i in tried:
                chance = reading.chance(i, 0.0)
                self.reliability.add(chance, i == node)
                reading.add(i, chance, i == node)
            if node < 0:
                return Score(reading.source, depth, int(depth < 1 + max(depths(parents))))
        return Score(reading.source, len(emitted), 0)

    def forget(self, request: int) -> None:
        """The request is over, or its candidates are others now."""
        readings = self._shadow.pop(request, None)
        if readings is not None:
            self._done(readings)

    def knowledge(self) -> dict[str, object]:
        """What was learnt, as a JSON object: "source|match|confidence" → [accepted, rejected],
        `Agreement.export` and `Lexical.export`.
        """
        return {
            "survival": self._cells.export(),
            "agreement": self.agreement.export(),
            "lexical": self.lexical.export(),
        }

    def recall(self, learnt: Mapping[str, object]) -> None:
        """Begin with `knowledge` of an earlier run, a count at most `STORED_WEIGHT` observations: the
        next texts may be others. What does not look like it is left out.
        """
        counts, weights, tokens = learnt.get("survival"), learnt.get("agreement"), learnt.get("lexical")
        if isinstance(counts, Mapping):
            self._restore(counts)
        if isinstance(weights, Mapping):
            self.agreement.restore(weights)
        if isinstance(tokens, Mapping):
            self.lexical.restore(tokens)

    def _restore(self, counts: Mapping[str, object]) -> None:
        for name, value in counts.items():
            if (
                isinstance(value, list)
                and len(value) == 2
                and all(isinstance(it, int | float) for it in value)
            ):
                accepted, rejected = value
                if accepted + rejected > 0:
                    scale = min(1.0, STORED_WEIGHT / (accepted + rejected))
                    self._cells.restore(name, accepted * scale, rejected * scale)


def _children(parents: Sequence[int]) -> dict[int, list[int]]:
    children: dict[int, list[int]] = {}
    for i, parent in enumerate(parents):
        children.setdefault(parent, []).append(i)
    return children
