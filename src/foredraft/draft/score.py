"""Scoring a draft over passages of text: how near it is to the target, and what a run would accept of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from foredraft.draft.passages import DEPTHS, Passage
from foredraft.draft.places import Place, Places, Target
from foredraft.draft.reading import Guesses, Reader
from foredraft.draft.rounds import RULES, Counts, Rule, survival
from foredraft.protocols import Model
from foredraft.sampling.coupled import CoupledSampler
from foredraft.types import Capabilities, Features

BINS = (0.0, 0.3, 0.5, 0.7, 0.9, 0.99, 1.0)
"""Bounds of the draft's own probability, for its calibration."""

SURE = 0.9
"""A draft's probability from which it is said to be sure."""


@dataclass(slots=True)
class Share:
    """A weighted share: how often something was so."""

    weight: float = 0.0
    so: float = 0.0

    def add(self, weight: float, so: float) -> None:
        """Count something that is so to a degree from 0 to 1."""
        self.weight += weight
        self.so += weight * so

    @property
    def value(self) -> float | None:
        """None where nothing was counted."""
        return self.so / self.weight if self.weight > 0.0 else None


@dataclass(slots=True)
class Distances:
    """Weighted means of a `Place`'s distances."""

    weight: float = 0.0
    sums: list[float] = field(default_factory=lambda: [0.0] * 4)

    def add(self, place: Place, weight: float = 1.0) -> None:
        """Count a place."""
        self.weight += weight
        for i, value in enumerate((place.kl_pq, place.kl_qp, place.tv, place.bound)):
            self.sums[i] += weight * value

    def values(self) -> Mapping[str, float | None]:
        """By name; None where nothing was counted."""
        names = ("kl_pq", "kl_qp", "tv", "bound")
        return {
            name: total / self.weight if self.weight else None
            for name, total in zip(names, self.sums, strict=True)
        }


class Tally:
    """What was found at one temperature. Greedy targets know one rule, `match`."""

    def __init__(self, temperature: float) -> None:
        self.temperature = temperature
        self.rules: tuple[Rule, ...] = RULES if temperature else RULES[:1]
        self.counts = {rule: [Counts(length) for length in range(1, DEPTHS + 1)] for rule in self.rules}
        self.everywhere = Distances()
        """Over all positions, also those that no draft would begin at."""
        self.first = {rule: Share() for rule in self.rules}
        """How often the first token of a draft is accepted, over all positions."""
        self.by_depth = [Distances() for _ in range(DEPTHS)]
        """Where drafts of `DEPTHS` tokens are right up to there under the rule `match`."""
        self.bins = [Share() for _ in BINS[1:]]
        """Draft tokens by their probability: how often they are right."""
        self._probabilities = [Share() for _ in BINS[1:]]
        self.sure = Share()
        self.drafted = 0.0

    @property
    def positions(self) -> int:
        """Positions that were compared."""
        return round(self.everywhere.weight)

    def add(self, passage: Passage, drafts: Sequence[Sequence[Place]]) -> None:
        """Count the drafts of a passage, one from each of its positions."""
        for places in drafts:
            if places:
                self.everywhere.add(places[0])

        def visit(i: int, depth: int, weight: float) -> None:
            self._visited(drafts[i][depth], depth, weight)

        for rule in self.rules:
            survivals = [survival(rule, places) for places in drafts]
            for found, places in zip(survivals, drafts, strict=True):
                if places:
                    accepted = 1.0 - places[0].tv if rule != "match" else found[0]
                    self.first[rule].add(1.0, accepted)
            for counts in self.counts[rule]:
                whole = rule == "match" and counts.length == DEPTHS
                counts.add(passage, survivals, visit if whole else None)

    @property
    def means(self) -> list[float | None]:
        """The mean probability of the tokens in each bin."""
        return [share.value for share in self._probabilities]

    def of_all(self, share: Share) -> float | None:
        """What part of the drafted tokens a share is about."""
        return share.weight / self.drafted if self.drafted else None

    def _visited(self, place: Place, depth: int, weight: float) -> None:
        self.by_depth[depth].add(place, weight)
        number = _bin(place.probability)
        self.bins[number].add(weight, place.agrees)
        self._probabilities[number].add(weight, place.probability)
        self.drafted += weight
        if place.probability > SURE:
            self.sure.add(weight, place.agrees)


def _bin(probability: float) -> int:
    return int(np.searchsorted(BINS[1:-1], probability, side="right"))


class Scorer:
    """Scores what drafts for a target, passage by passage. `needs`: the target's features that it reads, of
    which the target returns at least these.
    """

    def __init__(self, target: Model, guesses: Guesses, needs: Sequence[str] = ()) -> None:
        self.tallies: dict[float, Tally] = {}
        self.passages = 0
        self._model = target
        self._reader = Reader(target)
        self._guesses = guesses
        self._columns = _columns(target.capabilities, needs)
        self._sampler = CoupledSampler(target.info.vocab_size, target.tokenizer.end_tokens)

    def add(self, passage: Passage) -> None:
        """Score a passage. Raises OutOfKVError, BackendError; what was scored before is kept."""
        wanted = bool(self._columns)
        logits, features = self._reader.read(passage, features=wanted)
        self._guesses.read(passage, self._chosen(features))
        target = Target(passage, logits, self._model.info.vocab_size)
        places = Places(target, self._guesses, self._sampler, self.passages)
        drafts = [places.draft(start) for start in range(passage.first, passage.end)]
        self.tallies.setdefault(passage.temperature, Tally(passage.temperature)).add(passage, drafts)
        self.passages += 1

    def _chosen(self, features: Features | None) -> Features | None:
        return None if features is None else features[:, self._columns]


def _columns(able: Capabilities, needs: Sequence[str]) -> list[int]:
    """Which numbers of a row of the target's features these are."""
    size = able.feature_size
    return [able.features.index(name) * size + i for name in needs for i in range(size)]
