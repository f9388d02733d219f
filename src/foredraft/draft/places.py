"""How a draft's distribution compares with the target's at one place of a text."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from foredraft.draft.passages import DEPTHS, Passage
from foredraft.draft.reading import Guesses
from foredraft.protocols import RequestView
from foredraft.sampling.coupled import CoupledSampler
from foredraft.sampling.noise import MATCH, make_key
from foredraft.sampling.params import validate_params
from foredraft.sampling.processors import is_greedy
from foredraft.sampling.sampler import choose_token, processed
from foredraft.types import Logits, Probs, SamplingParams

LEAST_PROBABILITY = 1e-9
"""What a token counts as in the Kullback-Leibler divergence if it is rarer, or never proposed (a head of a
reduced vocabulary): the divergence stays finite."""

UNREACHED = 1e-3
"""A draft is followed as long as any rule has it right up to there with this probability."""


class Place(NamedTuple):
    """p is the target's distribution at a position, q that of the draft, both under the sampling rules; at
    temperature 0 the distances and probabilities are those at temperature 1.

    `agrees`: with the same noise (none at temperature 0) both choose the same token. `probability`: q of the
    token that the draft proposes. `ratio`: q ÷ p of the token that the target chooses. `kl_pq` is KL(p‖q) in
    nats, `tv` the total variation distance.
    """

    agrees: bool
    probability: float
    ratio: float
    kl_pq: float
    kl_qp: float
    tv: float

    @property
    def bound(self) -> float:
        """The least probability with which coupled choices agree (Daliri, Musco and Suresh 2024)."""
        return (1.0 - self.tv) / (1.0 + self.tv)


class Target:
    """What the target chooses in a passage, and the distribution that it chooses from."""

    def __init__(self, passage: Passage, logits: Logits, vocab_size: int) -> None:
        self.passage = passage
        self.params = validate_params(SamplingParams(temperature=passage.temperature), vocab_size)
        self.compared = replace(self.params, temperature=1.0) if is_greedy(self.params) else self.params
        self._logits = logits
        self._known: dict[int, tuple[int, Probs]] = {}

    def at(self, position: int) -> tuple[int, Probs]:
        """(its token, p) at a position of the passage."""
        if position not in self._known:
            if len(self._known) > DEPTHS:
                del self._known[min(self._known)]
            row = self._logits[position - self.passage.first]
            key = make_key(self.passage.seed, position, MATCH)
            self._known[position] = choose_token(row, self.params, key), processed(row, self.compared)
        return self._known[position]


class Places:
    """Compares what drafts (`guesses`) with a target, over one passage; `number` tells passages apart."""

    def __init__(self, target: Target, guesses: Guesses, sampler: CoupledSampler, number: int) -> None:
        self._target = target
        self._guesses = guesses
        self._sampler = sampler
        passage = target.passage
        self._view = RequestView(
            number, list(passage.tokens[: passage.first]), target.params, passage.seed, passage.first
        )
        self._known: dict[int, Place] = {}

    def draft(self, start: int) -> list[Place]:
        """The places of a draft from `start` on, up to `DEPTHS`, as long as all before are likely enough to
        be right.
        """
        places: list[Place] = []
        reached = 1.0
        for depth in range(min(self._target.passage.room(start), self._guesses.longest)):
            place = self._place(start, depth)
            places.append(place)
            reached *= 1.0 if place.agrees else min(1.0, place.ratio)
            greedy = is_greedy(self._target.params)
            if reached < UNREACHED or (greedy and not place.agrees):
                break
        return places

    def _place(self, start: int, depth: int) -> Place:
        position = start + depth
        if not self._guesses.by_position:
            return self._compared(position, self._guesses.logits(start, depth))
        if position not in self._known:
            self._known[position] = self._compared(position, self._guesses.logits(start, depth))
        return self._known[position]

    def propose(self, position: int, logits: Logits) -> tuple[int, float]:
        """What is drafted at a position, and its probability."""
        passage = self._target.passage
        token, probability, _ = self._sampler.propose(
            logits, self._view, passage.tokens[passage.first : position]
        )
        return token, probability

    def _compared(self, position: int, logits: Logits) -> Place:
        own, p = self._target.at(position)
        token, probability = self.propose(position, logits)
        q = processed(logits, self._target.compared)
        ratio = float(q[own]) / float(p[own]) if p[own] > 0.0 else 0.0
        return Place(token == own, probability, ratio, *distances(p, q))


def distances(p: Probs, q: Probs) -> tuple[float, float, float]:
    """(KL(p‖q), KL(q‖p), total variation) of two distributions, shape (vocabulary,)."""
    tv = 0.5 * float(np.abs(p - q).sum())
    either = np.flatnonzero((p > LEAST_PROBABILITY) | (q > LEAST_PROBABILITY))
    p, q = np.maximum(p[either], LEAST_PROBABILITY), np.maximum(q[either], LEAST_PROBABILITY)
    logs = np.log(p) - np.log(q)
    return max(0.0, float(p @ logs)), max(0.0, -float(q @ logs)), min(tv, 1.0)
