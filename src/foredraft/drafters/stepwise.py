"""Drafts by a small network, one forward for each depth, or one for all: what `draft-model` and `heads`
share.

All requests advance together. Tokens are chosen by a protocols.TokenSampler, which couples them to the
target's (docs/how-it-works.md). What a network holds of a text is never computed again; reading what it lacks
goes in chunks, the shortest first, so that one request's long prompt does not delay the others' drafts.

Where the target verifies trees, a token that is not certain gets siblings. A network that can continue
several branches in one forward continues the likeliest of all, by the product of the probabilities along
their paths; the likeliest nodes are the draft (EAGLE-2, Li et al. 2024, arXiv 2406.16858 §4).

A network that predicts a block of tokens in one forward is asked for as many as are wanted. Its rows do not
depend on what is chosen of the rows before them; each is chosen as any draft token is, and the first that is
not likely enough ends the draft.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Container, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from foredraft.errors import NoNextTokenError, NotNumbersError, OutOfKVError
from foredraft.protocols import RequestView, TokenSampler
from foredraft.types import Draft, DraftLimit, Logits, Probs

UNCERTAIN = 0.7
"""If the proposed token's probability is below this, a chain gets the second choice as a sibling …"""

SECOND = 0.1
"""… provided that the probability of reaching it is at least this."""


class Width(NamedTuple):
    """How wide a draft is: `extended` nodes of each depth are continued, in one forward. A token whose
    probability is below `uncertain` has up to `children` - 1 siblings, each of them reached with a
    probability of at least `least`.
    """

    extended: int
    children: int
    uncertain: float
    least: float


CHAIN = Width(1, 1, 0.0, 1.0)
SECONDS = Width(1, 2, UNCERTAIN, SECOND)
TREE = Width(4, 4, 1.0, 0.02)
_ROOT = -1


@dataclass(slots=True)
class Job:
    """One request's draft in progress: nodes, parents before their children, at most `most` of which are
    drafted.

    `number` is the network's sequence, `todo` the tokens to feed from position `at` on before it goes on:
    unread text while `reading`, then those of the nodes `open`, of one depth. `fed` are the nodes that the
    network has.
    """

    index: int
    request: RequestView
    limit: DraftLimit
    most: int
    number: int
    at: int
    todo: Sequence[int]
    reading: bool = True
    open: list[int] = field(default_factory=lambda: [_ROOT])
    fed: list[int] = field(default_factory=list)
    depth: int = 0
    tokens: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    confidence: list[float] = field(default_factory=list)
    survival: list[float] = field(default_factory=list)
    probs: list[Probs] = field(default_factory=list)

    def path(self, node: int) -> list[int]:
        """The tokens from the first of the draft to this node."""
        tokens: list[int] = []
        while node != _ROOT:
            tokens.append(self.tokens[node])
            node = self.parents[node]
        return tokens[::-1]

    def reached(self, node: int) -> float:
        """The probability of reaching a node."""
        return 1.0 if node == _ROOT else self.survival[node]

    def add(self, parent: int, token: int, probability: float) -> int:
        self.tokens.append(token)
        self.parents.append(parent)
        self.confidence.append(probability)
        self.survival.append(self.reached(parent) * probability)
        return len(self.tokens) - 1

    def least(self) -> float:
        """The survival that a node needs to be among those that are drafted."""
        return sorted(self.survival)[-self.most] if len(self.survival) > self.most else 0.0

    def draft(self, name: str, min_tokens: int) -> Draft | None:
        """The proposed draft: the nodes with the highest survival. A sampled draft is kept however short:
        dropping it would bias the output.
        """
        if not self.tokens or (self.depth < min_tokens and not self.probs):
            return None
        order = sorted(range(len(self.tokens)), key=self.survival.__getitem__, reverse=True)[: self.most]
        place = {node: i for i, node in enumerate(order)} | {_ROOT: _ROOT}
        parents = tuple(place[self.parents[node]] for node in order)
        chain = all(parent == i - 1 for i, parent in enumerate(parents))
        return Draft(
            tuple(self.tokens[node] for node in order),
            name,
            None if chain else parents,
            tuple(self.confidence[node] for node in order),
            probs=tuple(self.probs) if self.probs else None,
        )


class Chunk(NamedTuple):
    """Rows of one job in a forward: the tokens from position `start` on, the last `logits` of which return
    logits, or the last one for `logits` tokens after it. `parents`: of the job's nodes, if they are such, as
    indices of `Job.fed`; -1 is the text's last token.
    """

    job: Job
    start: int
    tokens: Sequence[int]
    logits: int
    parents: Sequence[int] | None


class StepwiseDrafter(ABC):
    """A drafter whose network is fed by `_feed`. `rows`: the most rows of one forward. At most `max_tokens`
    are drafted; under the rule `match` a draft ends before a token with a probability below `min_p`, and
    drafts of fewer than `min_tokens` are dropped. `end_tokens` end a draft. `block`: tokens that the network
    predicts in one forward, 0 if it predicts one.
    """

    name: str
    costly = True
    parameters: int
    """Of the network."""

    def __init__(
        self,
        sampler: TokenSampler,
        end_tokens: frozenset[int],
        *,
        rows: int,
        max_tokens: int,
        min_tokens: int = 0,
        min_p: float = 0.0,
        width: Width = CHAIN,
        block: int = 0,
    ) -> None:
        self._sampler = sampler
        self._end_tokens = end_tokens
        self._rows = rows
        self._max_tokens = min(max_tokens, block) if block else max_tokens
        self._min_tokens = min_tokens
        self._min_p = min_p
        self._width = width
        self._block = block

    @abstractmethod
    def _begin(self, request: RequestView) -> tuple[int, int, int] | None:
        """(sequence, position from which the text has to be fed, most tokens of a draft) for a request with
        at least one token; None if it cannot be drafted for. The last token is always fed.
        """

    @abstractmethod
    def _feed(self, chunks: Sequence[Chunk]) -> Logits:
        """Compute the rows, and note what was fed. Raises OutOfKVError, with everything as before."""

    def draft(self, requests: Sequence[tuple[RequestView, DraftLimit]]) -> list[Draft | None]:
        jobs = [
            job
            for index, (request, limit) in enumerate(requests)
            if (job := self._prepare(index, request, limit)) is not None
        ]
        drafts: list[Draft | None] = [None] * len(requests)
        active = jobs
        while active:
            try:
                self._advance(active)
            except OutOfKVError:
                break
            active = [job for job in active if job.todo]
        for job in jobs:
            drafts[job.index] = job.draft(self.name, self._min_tokens)
        return drafts

    def _prepare(self, index: int, request: RequestView, limit: DraftLimit) -> Job | None:
        """The request's job; None if nothing can be drafted for it."""
        if min(limit.max_tokens, self._max_tokens) < 1 or not request.tokens:
            return None
        begun = self._begin(request)
        if begun is None:
            return None
        number, start, room = begun
        most = min(limit.max_tokens, self._max_tokens, room)
        return Job(index, request, limit, most, number, start, request.tokens[start:]) if most > 0 else None

    def _advance(self, jobs: Sequence[Job]) -> None:
        """One forward, in which text may be read in part. Raises OutOfKVError and then leaves the jobs
        unchanged.
        """
        room = self._rows
        chunks: list[Chunk] = []
        for job in sorted(jobs, key=lambda job: len(job.todo)):
            take = min(room, len(job.todo))
            if take < (1 if job.reading else len(job.todo)):
                break
            room -= take
            chunks.append(self._chunk(job, take))
        logits = self._feed(chunks)
        row = 0
        for job, _, tokens, wanted, _ in chunks:
            rows, row = logits[row : row + wanted], row + wanted
            job.at += len(tokens) if job.reading else 1
            job.fed += job.open if not job.reading else ()
            job.todo = job.todo[len(tokens) :]
            if not job.todo and self._block:
                self._take(job, rows)
            elif not job.todo:
                self._grow(job, rows)

    def _chunk(self, job: Job, take: int) -> Chunk:
        """The next rows of a job."""
        if job.reading:
            wanted = 0 if take < len(job.todo) else job.most if self._block else 1
            return Chunk(job, job.at, job.todo[:take], wanted, None)
        place = {node: i for i, node in enumerate(job.fed)} | {_ROOT: _ROOT}
        return Chunk(job, job.at, job.todo, take, [place[job.parents[node]] for node in job.open])

    def _take(self, job: Job, rows: Logits) -> None:
        """Add the tokens of a block."""
        node = _ROOT
        for logits in rows:
            born = self._follow(job, node, logits)
            if not born:
                return
            node = born[0]
            job.depth += 1
            if job.tokens[node] in self._end_tokens or job.survival[node] < job.limit.min_survival:
                return

    def _grow(self, job: Job, rows: Logits) -> None:
        """Add what may follow the open nodes, and open what is worth continuing."""
        job.reading = False
        born: list[int] = []
        for node, logits in zip(job.open, rows, strict=True):
            born += self._follow(job, node, logits)
        job.depth += bool(born)
        if job.depth >= job.most:
            return
        least = max(job.limit.min_survival, job.least())
        worth = [
            node for node in born if job.tokens[node] not in self._end_tokens and job.survival[node] >= least
        ]
        worth.sort(key=job.survival.__getitem__, reverse=True)
        job.open = worth[: self._width.extended]
        job.todo = [job.tokens[node] for node in job.open]

    def _follow(self, job: Job, node: int, logits: Logits) -> list[int]:
        """Add the tokens that may follow a node; returns those that may be continued."""
        path, reached = job.path(node), job.reached(node)
        try:
            token, probability, probs = self._sampler.propose(logits, job.request, path)
        except (NoNextTokenError, NotNumbersError):
            return []  # the network has none of the tokens that may come here, or has overflowed
        if probs is not None:
            # A token that was drawn from q must be kept whatever its probability (dropping it would bias the
            # output), so the estimate may only depend on q: the probability that two draws agree.
            job.probs.append(probs)
            return [job.add(node, token, float(probs @ probs))]
        if not probability or probability < self._min_p or reached * probability < job.limit.min_survival:
            return []
        born = [job.add(node, token, probability)]
        others = self._siblings(job, node, logits, token, probability)
        return born + others if self._width.extended > 1 else born

    def _siblings(self, job: Job, node: int, logits: Logits, first: int, probability: float) -> list[int]:
        """Add the best tokens but `first` under the same noise, as far as they are likely enough: what the
        target most likely takes if it rejects that.
        """
        width, reached, path = self._width, job.reached(node), job.path(node)
        added: list[int] = []
        if probability >= width.uncertain or reached * min(probability, 1.0 - probability) < width.least:
            return added
        others, token, rest = logits.copy(), first, 1.0 - probability
        while len(added) < width.children - 1:
            others[token] = -np.inf
            try:
                token, share, _ = self._sampler.propose(others, job.request, path)
            except NoNextTokenError:
                break
            # The noise may favour a token with a lower probability than the next; it still comes before it.
            probability = min(probability, rest * share)
            if reached * probability < width.least:
                break
            added.append(job.add(node, token, probability))
            rest -= probability
            if reached * min(probability, rest) < width.least:
                break
        return added


class Sequences:
    """The numbers of a network's sequences, by request."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._numbers: dict[int, int] = {}

    def of(self, request: int) -> int | None:
        """The request's sequence; None if it has none."""
        return self._numbers.get(request)

    def take(self, request: int) -> int | None:
        """The request's sequence, the lowest free one if it has none yet; None if all are taken."""
        if request in self._numbers:
            self._numbers[request] = self._numbers.pop(request)  # the last one that was used
        else:
            used = set(self._numbers.values())
            free = next((n for n in range(self._count) if n not in used), None)
            if free is None:
                return None
            self._numbers[request] = free
        return self._numbers[request]

    def longest_unused(self, spared: Container[int]) -> int | None:
        """The request that took its sequence longest ago, but for those `spared`; None if there is none."""
        return next((request for request in self._numbers if request not in spared), None)

    def give_back(self, request: int) -> int | None:
        """The sequence that the request had."""
        return self._numbers.pop(request, None)
