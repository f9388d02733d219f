"""Survival: how likely each token of a draft is to be accepted, learnt from what was accepted before.

A draft token's chance, given that its ancestors were accepted, is looked up in a table of Beta counts with
forgetting. The key is the drafter, how long its match is at that depth (a match grows with every accepted
token), and the drafter's own confidence: drafters know different things, and none is taken at its word. Where
another draft has a token at the same place, that changes the chance (`agreement`), and so does which token it
is (`lexical`).

Every candidate is scored against what the target emits, whether it was verified or not ("shadow scoring"),
so a source that was wrong for a while is still measured while it is not used, at no cost.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from foretoken.planner.agreement import Agreement, beside, shared
from foretoken.planner.cells import NEGLIGIBLE, Cells, Reading, depths
from foretoken.planner.lexical import NONE, Lexical, moved
from foretoken.planner.reliability import ReliabilityTable
from foretoken.types import Draft, Outcome

STORED_WEIGHT = 32.0
"""Observations that a cell from an earlier run counts for, at most."""


@dataclass(frozen=True, slots=True)
class Score:
    """How a candidate did: tokens that were right, and 1 wrong unless it was right to its end (or the
    target's tokens ended first). A tree ends where its longest path does: a right token that nothing is built
    on stands beside a wrong one, and so the next is not right either.
    """

    source: str
    right: int
    wrong: int


def sampled(drafts: Sequence[Draft]) -> Draft | None:
    """The draft that must be verified whole, if there is one: drawn at random from its drafter's
    distribution, for the rejection and block rules.

    Those rules are lossless only if whether a token is verified does not depend on what was drawn; a choice
    by the draft's own confidence would. Its length was limited before it was drawn.
    """
    return next((draft for draft in drafts if draft.probs is not None), None)


def depth_of(draft: Draft) -> int:
    """The tokens of a draft's longest path: what a drafter that goes token by token takes its time for."""
    return len(draft) if draft.parents is None else 1 + max(depths(draft.parents))


class Survival:
    """Calibrated acceptance of drafts, for all sources of one engine."""

    def __init__(self) -> None:
        self._cells = Cells()
        self.lexical = Lexical()
        self._shadow: dict[int, list[Reading]] = {}
        self.agreement = Agreement()
        self.reliability = ReliabilityTable()

    def _reading(self, draft: Draft, last: int) -> Reading:
        return Reading(draft, last, self._cells, self.lexical)

    def conditional(self, draft: Draft, caution: float = 0.0, last: int = NONE) -> list[float]:
        """P(token i is accepted | its ancestors were), `caution` standard deviations below the posterior
        mean, of a draft after the token `last`.
        """
        reading = self._reading(draft, last)
        return [reading.chance(i, caution) for i in range(len(draft))]

    def estimate(self, draft: Draft, caution: float = 0.0, last: int = NONE) -> list[float]:
        """P(token i and all its ancestors are accepted), never above its parent's. Once a chain's falls under
        `NEGLIGIBLE` the rest counts as 0: what is hopeless is not worth the time to say how much.
        """
        return self._reading(draft, last).estimate(caution)

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
        if readings is None:
            readings = [self._reading(draft, NONE) for draft in drafts]
        self._meet(readings)
        return [self._together(reading, reading.estimate(caution, least), caution) for reading in readings]

    def _together(self, reading: Reading, survivals: list[float], caution: float) -> list[float]:
        """What a draft's estimates are with what the others say."""
        company = reading.company
        if company is None or not len(company):
            return survivals
        agreement, shared = self.agreement, len(company)
        alone, together = survivals[shared - 1], 1.0
        for i in range(shared):
            mixed = reading.counts(i).cautious(agreement.chance(company, i), caution)
            together *= moved(mixed, reading.odds(i))
            survivals[i] = together
        for i in range(shared, len(survivals)):
            survivals[i] *= together / alone if alone else 0.0
        return survivals

    @staticmethod
    def _meet(readings: Sequence[Reading]) -> None:
        """Have each draft know of the others, as far as they have a token where it has one."""
        drafts = [reading.draft for reading in readings]
        count = shared(drafts)
        chances: list[list[float]] = []
        for reading in readings:
            first = 0 if reading.draft.parents is not None else min(count, len(reading.draft.tokens))
            chances.append([reading.alone(i, 0.0) for i in range(first)])
        for i, reading in enumerate(readings):
            reading.company = beside(i, drafts, chances)

    def remember(self, request: int, drafts: Sequence[Draft], last: int = NONE) -> None:
        """The candidates of this round, after the text's token `last`, to be scored with its outcome."""
        self._shadow[request] = [self._reading(draft, last) for draft in drafts]

    def score(self, request: int, outcome: Outcome) -> list[Score]:
        """Learn from what the target emitted. Only tokens whose ancestors were right say anything.

        Returns how each candidate did.
        """
        readings = self._shadow.pop(request, None)
        if not readings:
            return []
        if any(reading.company is None for reading in readings):
            self._meet(readings)
        return [self._score(reading, outcome.tokens) for reading in readings]

    def _score(self, reading: Reading, emitted: Sequence[int]) -> Score:
        draft = reading.draft
        if draft.parents is not None:
            return self._score_tree(reading, emitted)
        tokens, company = draft.tokens, reading.company
        shared = 0 if company is None else len(company)
        for i, token in enumerate(emitted):
            if i == len(tokens):
                return Score(draft.source, i, 0)
            right = tokens[i] == token
            if company is not None and i < shared:
                chance = moved(self.agreement.add(company, i, right), reading.odds(i))
            else:
                chance = reading.chance(i, 0.0)
            self.reliability.add(chance, right)
            reading.add(i, chance, right=right)
            if not right:
                return Score(draft.source, i, 1)
        return Score(draft.source, len(emitted), 0)

    def _score_tree(self, reading: Reading, emitted: Sequence[int]) -> Score:
        draft = reading.draft
        children, node = _children(draft), -1
        for depth, token in enumerate(emitted):
            tried = children.get(node, [])
            # The right token at this depth, if the draft has it: its children are tried next.
            node = next((i for i in tried if draft.tokens[i] == token), -1)
            for i in tried:
                chance = reading.chance(i, 0.0)
                self.reliability.add(chance, i == node)
                reading.add(i, chance, right=i == node)
            if node < 0:
                return Score(draft.source, depth, int(depth < depth_of(draft)))
        return Score(draft.source, len(emitted), 0)

    def forget(self, request: int) -> None:
        self._shadow.pop(request, None)

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
        counts, weights, tokens = (learnt.get(name) for name in ("survival", "agreement", "lexical"))
        if isinstance(counts, Mapping):
            self._restore(counts)
        if isinstance(weights, Mapping):
            self.agreement.restore(weights)
        if isinstance(tokens, Mapping):
            self.lexical.restore(tokens)

    def _restore(self, counts: Mapping[str, object]) -> None:
        for name, value in counts.items():
            match value:
                case [int() | float() as accepted, int() | float() as rejected] if accepted + rejected > 0:
                    scale = min(1.0, STORED_WEIGHT / (accepted + rejected))
                    self._cells.restore(name, accepted * scale, rejected * scale)


def _children(draft: Draft) -> dict[int, list[int]]:
    children: dict[int, list[int]] = {}
    for i, parent in enumerate(draft.parents or ()):
        children.setdefault(parent, []).append(i)
    return children
