"""Survival: how likely each token of a draft is to be accepted, learnt from what was accepted before.

A draft token's chance, given that its ancestors were accepted, is looked up in a table of Beta counts with
forgetting. The key is the drafter, how long its match is at that depth (a match grows with every accepted
token), and the drafter's own confidence: drafters know different things, and none is taken at its word. Where
another draft has a token at the same place, that changes the chance (`agreement`).

Every candidate is scored against what the target emits, whether it was verified or not ("shadow scoring"),
so a source that was wrong for a while is still measured while it is not used, at no cost.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

from foretoken.planner.agreement import Agreement, Beside, beside, shared
from foretoken.planner.beta import NOTHING, Counts
from foretoken.planner.reliability import ReliabilityTable
from foretoken.types import Draft, Outcome

STORED_WEIGHT = 32.0
"""Observations that a cell from an earlier run counts for, at most."""

NEGLIGIBLE = 0.005

_CONFIDENCE_EDGES = (0.3, 0.5, 0.7, 0.8, 0.9, 0.95, 0.98)
_MATCH_EDGES = (2, 3, 4, 6, 8, 12, 16, 24, 32)
_DEFAULT_CONFIDENCE = 0.6


Key = tuple[str, int, int]


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
    return len(draft) if draft.parents is None else 1 + max(_depths(draft.parents))


class Survival:
    """Calibrated acceptance of drafts, for all sources of one engine."""

    def __init__(self) -> None:
        self._cells: dict[Key, Counts] = {}
        self._shadow: dict[int, Sequence[Draft]] = {}
        self.agreement = Agreement()
        self.reliability = ReliabilityTable()

    def conditional(self, draft: Draft, caution: float = 0.0) -> list[float]:
        """P(token i is accepted | its ancestors were), `caution` standard deviations below the posterior
        mean.
        """
        return [self._chance(key, prior, caution) for key, prior in _keys(draft)]

    def _chance(self, key: Key, prior: float, caution: float) -> float:
        return self._cells.get(key, NOTHING).chance(prior, caution)

    def estimate(self, draft: Draft, caution: float = 0.0) -> list[float]:
        """P(token i and all its ancestors are accepted), never above its parent's. Once a chain's falls under
        `NEGLIGIBLE` the rest counts as 0: what is hopeless is not worth the time to say how much.
        """
        survivals: list[float] = []
        if draft.parents is not None:
            for parent, chance in zip(draft.parents, self.conditional(draft, caution), strict=True):
                survivals.append(chance if parent < 0 else survivals[parent] * chance)
            return survivals
        survival, cells = 1.0, self._cells
        for key, prior in _keys(draft):
            survival *= cells.get(key, NOTHING).chance(prior, caution)
            if survival < NEGLIGIBLE:
                break
            survivals.append(survival)
        return survivals + [0.0] * (len(draft) - len(survivals))

    def estimates(self, drafts: Sequence[Draft], caution: float = 0.0) -> list[list[float]]:
        """`estimate` of each of a request's drafts, of which one may be verified: all know of each other."""
        estimates = [self.estimate(draft, caution) for draft in drafts]
        companies = self._company(drafts, max(map(len, drafts), default=0))
        for draft, survivals, company in zip(drafts, estimates, companies, strict=True):
            if not company:
                continue
            alone, together = survivals[len(company) - 1], 1.0
            for i, (token, (key, _)) in enumerate(zip(company, _keys(draft), strict=False)):
                together *= self._cells.get(key, NOTHING).cautious(self.agreement.chance(token), caution)
                survivals[i] = together
            for i in range(len(company), len(survivals)):
                survivals[i] *= together / alone if alone else 0.0
        return estimates

    def _company(self, drafts: Sequence[Draft], most: int) -> list[list[Beside]]:
        """The first tokens of each draft, `most` at most, as far as another one has one there, too."""
        count = min(most, shared(drafts))
        if not count:
            return [[] for _ in drafts]
        chances: list[list[float]] = []
        for draft in drafts:
            keys = () if draft.parents is not None else islice(_keys(draft), count)
            chances.append([self._chance(key, prior, 0.0) for key, prior in keys])
        return [beside(i, drafts, chances) for i in range(len(drafts))]

    def remember(self, request: int, drafts: Sequence[Draft]) -> None:
        """The candidates of this round, to be scored with its outcome."""
        self._shadow[request] = drafts

    def score(self, request: int, outcome: Outcome) -> list[Score]:
        """Learn from what the target emitted. Only tokens whose ancestors were right say anything.

        Returns how each candidate did.
        """
        drafts = self._shadow.pop(request, ())
        return [
            self._score(draft, outcome, company)
            for draft, company in zip(drafts, self._company(drafts, len(outcome.tokens)), strict=True)
        ]

    def _score(self, draft: Draft, outcome: Outcome, company: Sequence[Beside]) -> Score:
        right, node = 0, -1
        children = None if draft.parents is None else _children(draft)
        # Of a chain only the tokens that the target reached are looked up.
        keys = list(_keys(draft) if children is not None else islice(_keys(draft), len(outcome.tokens)))
        for depth, token in enumerate(outcome.tokens):
            if children is not None:
                tried = children.get(node, [])
            else:
                tried = [node + 1] if node + 1 < len(draft) else []
            # The right token at this depth, if the draft has it: its children are tried next.
            node = next((i for i in tried if draft.tokens[i] == token), -1)
            for i in tried:
                key, prior = keys[i]
                if depth < len(company):
                    chance = self.agreement.add(company[depth], i == node)
                else:
                    chance = self._chance(key, prior, 0.0)
                self.reliability.add(chance, i == node)
                self._cells.setdefault(key, Counts()).add(i == node)
            if node < 0:
                return Score(draft.source, right, int(right < depth_of(draft)))
            right += 1
        return Score(draft.source, right, 0)

    def forget(self, request: int) -> None:
        self._shadow.pop(request, None)

    def knowledge(self) -> dict[str, object]:
        """What was learnt, as a JSON object: "source|match|confidence" → [accepted, rejected], and
        `Agreement.export`.
        """
        counts = {
            "|".join(map(str, key)): [round(cell.right, 3), round(cell.wrong, 3)]
            for key, cell in self._cells.items()
        }
        return {"survival": counts, "agreement": self.agreement.export()}

    def recall(self, learnt: Mapping[str, object]) -> None:
        """Begin with `knowledge` of an earlier run, a count at most `STORED_WEIGHT` observations: the
        next texts may be others. What does not look like it is left out.
        """
        counts, weights = learnt.get("survival"), learnt.get("agreement")
        if isinstance(counts, Mapping):
            self._restore(counts)
        if isinstance(weights, Mapping):
            self.agreement.restore(weights)

    def _restore(self, counts: Mapping[str, object]) -> None:
        for name, value in counts.items():
            source, *buckets = name.rsplit("|", 2)
            if len(buckets) != 2 or not all(bucket.isdecimal() for bucket in buckets):
                continue
            match value:
                case [int() | float() as accepted, int() | float() as rejected] if accepted + rejected > 0:
                    scale = min(1.0, STORED_WEIGHT / (accepted + rejected))
                    key = (source, int(buckets[0]), int(buckets[1]))
                    self._cells[key] = Counts(max(0.0, accepted * scale), max(0.0, rejected * scale))


def _keys(draft: Draft) -> Iterator[tuple[Key, float]]:
    """The table key and the prior of each token of a draft."""
    match = int(draft.features.get("match_length", 0))
    source, confidences, known = draft.source, draft.confidence, len(draft.confidence)
    for i, depth in enumerate(range(len(draft)) if draft.parents is None else _depths(draft.parents)):
        confidence = confidences[i] if i < known else _DEFAULT_CONFIDENCE
        key = (source, bisect(_MATCH_EDGES, match + depth), bisect(_CONFIDENCE_EDGES, confidence))
        yield key, confidence if 0.02 < confidence < 0.98 else min(0.98, max(0.02, confidence))


def _depths(parents: Sequence[int]) -> list[int]:
    depths: list[int] = []
    for parent in parents:
        depths.append(0 if parent < 0 else depths[parent] + 1)
    return depths


def _children(draft: Draft) -> dict[int, list[int]]:
    children: dict[int, list[int]] = {}
    for i, parent in enumerate(draft.parents or ()):
        children.setdefault(parent, []).append(i)
    return children
