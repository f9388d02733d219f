"""`draft-model`: drafts by a smaller model (Leviathan et al. 2023, arXiv 2211.17192).

Each request has its own KV sequence in the draft model, which is only fed when a draft is requested; cells in
the cache are never recomputed. All requests advance together, one forward per depth. Tokens are chosen by a
protocols.TokenSampler, which couples them to the target's (docs/how-it-works.md). A model with another
vocabulary drafts through `translation/`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from foredraft.config import read_options
from foredraft.drafters.translation.choice import WAYS, compare, describe
from foredraft.drafters.translation.drafter import TranslatingDrafter
from foredraft.errors import OutOfKVError, SpeculationStringError, UnsupportedModelError, quoted
from foredraft.protocols import Drafter, DrafterContext, Model, RequestView, TokenSampler
from foredraft.types import Draft, DraftLimit, Logits, Outcome, Probs, Rollback, Rows

NAME = "draft-model"

UNCERTAIN = 0.7
"""If the proposed token's probability is below this, a tree also gets the second choice …"""

SECOND = 0.1
"""… provided that the draft model's probability of reaching it is at least this."""


def create(context: DrafterContext, options: Mapping[str, str]) -> Drafter:
    """Create the drafter. Options: `model` (path or name, required), `max` tokens per draft, `min` (drop
    shorter drafts), `min-p` (stop before a token with a lower probability; llama.cpp's draft-p-min), `ctx`
    (context length, 0 = the target's), `translate` (how drafts in another vocabulary are translated).

    Raises SpeculationStringError for an invalid value, UnsupportedModelError for an unsuitable vocabulary or
    rollback, and the errors of loading the model.
    """
    values = _read(options)
    model = context.load_model(
        values["model"],
        sequences=context.capabilities.sequences,
        context_length=values["ctx"] or context.target.context_length,
    )
    try:
        _check(model)
        if model.info.vocab_hash != context.target.vocab_hash:
            return _translating(model, context, values)
    except BaseException:
        model.close()
        raise
    return DraftModelDrafter(
        model,
        context.sampler,
        max_tokens=values["max"],
        min_tokens=values["min"],
        min_p=values["min-p"],
        end_tokens=context.tokenizer.end_tokens,
        trees=context.capabilities.trees,
    )


def _read(options: Mapping[str, str]) -> dict[str, Any]:
    defaults: dict[str, int | float | str] = {
        "model": "",
        "max": 16,
        "min": 0,
        "min-p": 0.0,
        "ctx": 0,
        "translate": "auto",
    }
    values = read_options(NAME, options, defaults)
    if not values["model"]:
        raise SpeculationStringError(
            f"The drafter {quoted(NAME)} needs a model.", hint=f"Name one: {NAME}:model=small.gguf"
        )
    if values["max"] < 1:
        raise SpeculationStringError(f"{NAME}: max={values['max']} must be at least 1.")
    if not 0.0 <= values["min-p"] <= 1.0:
        raise SpeculationStringError(f"{NAME}: min-p={values['min-p']} must be between 0 and 1.")
    if values["translate"] not in WAYS:
        raise SpeculationStringError(
            f"{NAME}: translate={quoted(values['translate'])} is not a valid method.",
            hint=f"Valid methods: {', '.join(WAYS)}.",
        )
    return values


def _check(model: Model) -> None:
    if model.capabilities.rollback is not Rollback.TRUNCATE:
        raise UnsupportedModelError(
            f"{model.info.name} cannot draft: rejected tokens cannot be removed from its cache "
            f"(rollback: {model.capabilities.rollback.value}).",
            hint="Use a draft model with attention layers only.",
        )


def _translating(model: Model, context: DrafterContext, values: Mapping[str, Any]) -> Drafter:
    """Create the drafter for a model whose vocabulary differs from the target's."""
    way = values["translate"]
    languages = compare(model, context, way)
    context.notice(describe(model, context, languages, way))

    def inner(sampler: TokenSampler, most: int) -> Drafter:
        return DraftModelDrafter(model, sampler, most, values["min-p"])

    return TranslatingDrafter(
        inner,
        languages,
        context.sampler,
        vocab_size=context.target.vocab_size,
        way=way,
        max_tokens=values["max"],
        min_tokens=values["min"],
    )


@dataclass(slots=True)
class _Sequence:
    """A request's KV sequence. `cells` are its tokens: the fed part of the history, followed between a draft
    and its outcome by tokens of that draft.
    """

    number: int
    cells: list[int] = field(default_factory=list)


@dataclass(slots=True)
class _Job:
    """One request's draft in progress. `todo`: tokens to feed before the next one can be proposed; `second`:
    at some depths the second choice, which is not extended, and its probability.
    """

    index: int
    request: RequestView
    limit: DraftLimit
    depth: int
    sequence: _Sequence
    todo: Sequence[int]
    tokens: list[int] = field(default_factory=list)
    confidence: list[float] = field(default_factory=list)
    probs: list[Probs] = field(default_factory=list)
    survival: float = 1.0
    second: dict[int, tuple[int, float]] = field(default_factory=dict)

    def draft(self, min_tokens: int) -> Draft | None:
        """The proposed draft. A sampled draft is kept however short: dropping it would bias the output."""
        if not self.tokens or (len(self.tokens) < min_tokens and not self.probs):
            return None
        if self.second:
            return self._tree()
        probs = tuple(self.probs) if self.probs else None
        return Draft(tuple(self.tokens), NAME, confidence=tuple(self.confidence), probs=probs)

    def _tree(self) -> Draft:
        """The chain with its second choices: the nodes with the highest survival, up to the draft's limit."""
        nodes: list[tuple[float, int, int, float]] = []  # survival, depth, token, probability
        reached = 1.0
        for depth, (token, probability) in enumerate(zip(self.tokens, self.confidence, strict=True)):
            nodes.append((reached * probability, depth, token, probability))
            if depth in self.second:
                other, its = self.second[depth]
                nodes.append((reached * its, depth, other, its))
            reached *= probability
        nodes = sorted(nodes, key=lambda node: node[0], reverse=True)[: self.depth]
        place = {-1: -1}  # index of the chain's token at each depth
        parents: list[int] = []
        for i, (_, depth, token, _) in enumerate(nodes):
            parents.append(place[depth - 1])
            if token == self.tokens[depth]:
                place[depth] = i
        return Draft(tuple(node[2] for node in nodes), NAME, tuple(parents), tuple(node[3] for node in nodes))


class DraftModelDrafter:
    """Drafts with `model`, which it owns. At most `max_tokens` per draft; under the rule `match` a draft ends
    before a token with a probability below `min_p`, and drafts of fewer than `min_tokens` are dropped.
    `end_tokens` (default: the model's) end a draft. `trees`: an uncertain token gets a sibling, the second
    choice under the same noise, which is the likeliest alternative if the target rejects the first.
    """

    name = NAME

    def __init__(
        self,
        model: Model,
        sampler: TokenSampler,
        max_tokens: int = 16,
        min_p: float = 0.0,
        *,
        min_tokens: int = 0,
        end_tokens: frozenset[int] | None = None,
        trees: bool = False,
    ) -> None:
        self._trees = trees
        self._min_tokens = min_tokens
        self._model = model
        self._sampler = sampler
        self._max_tokens = max_tokens
        self._min_p = min_p
        self._end_tokens = model.tokenizer.end_tokens if end_tokens is None else end_tokens
        self._sequences: dict[int, _Sequence] = {}

    def start(self, request: RequestView) -> None:
        """Nothing to do: a sequence is allocated with the first draft."""

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
            drafts[job.index] = job.draft(self._min_tokens)
        return drafts

    def observe(self, request: RequestView, outcome: Outcome) -> None:
        sequence = self._sequences.get(request.id)
        if sequence is None:
            return
        cells, tokens = sequence.cells, request.tokens
        agreed = min(len(cells), outcome.kept)
        end = min(len(cells), len(tokens))
        while agreed < end and cells[agreed] == tokens[agreed]:
            agreed += 1
        self._cut(sequence, agreed)

    def stop(self, request: RequestView) -> None:
        sequence = self._sequences.pop(request.id, None)
        if sequence is not None:
            self._model.release(sequence.number)

    def close(self) -> None:
        self._sequences.clear()
        self._model.close()

    def _prepare(self, index: int, request: RequestView, limit: DraftLimit) -> _Job | None:
        """The request's job; None if it must not draft, or there is no sequence or cell left."""
        length = len(request.tokens)
        # A draft's last token is never fed, so d tokens need d − 1 cells beyond the history.
        room = self._model.info.context_length - length + 1
        depth = min(limit.max_tokens, self._max_tokens, room)
        if depth < 1 or length == 0:
            return None
        sequence = self._sequences.get(request.id) or self._allocate(request.id)
        if sequence is None:
            return None
        # If the cache already contains the last token it is fed again, because its logits are gone. Cells of
        # an earlier draft after the same history are dropped.
        self._cut(sequence, length - 1)
        return _Job(index, request, limit, depth, sequence, request.tokens[len(sequence.cells) :])

    def _allocate(self, request: int) -> _Sequence | None:
        used = {sequence.number for sequence in self._sequences.values()}
        number = next((n for n in range(self._model.capabilities.sequences) if n not in used), None)
        if number is None:
            return None
        self._sequences[request] = sequence = _Sequence(number)
        return sequence

    def _cut(self, sequence: _Sequence, length: int) -> None:
        if length < len(sequence.cells):
            self._model.truncate(sequence.number, length)
            del sequence.cells[length:]

    def _advance(self, jobs: Sequence[_Job]) -> None:
        """One forward: a chunk of every job's tokens, the shortest jobs first, so that one request's long
        prompt does not delay the others' drafts. Raises OutOfKVError and then leaves the jobs unchanged.
        """
        room = self._model.capabilities.max_batch
        chunks: list[tuple[_Job, int]] = []
        batch: list[Rows] = []
        for job in sorted(jobs, key=lambda job: len(job.todo)):
            if room == 0:
                break
            take = min(room, len(job.todo))
            room -= take
            chunks.append((job, take))
            wants = 1 if take == len(job.todo) else 0
            sequence = job.sequence
            batch.append(Rows(sequence.number, len(sequence.cells), job.todo[:take], wants))
        logits = self._model.forward(batch)
        row = 0
        for job, take in chunks:
            job.sequence.cells.extend(job.todo[:take])
            job.todo = job.todo[take:]
            if not job.todo:
                self._propose(job, logits[row])
                row += 1

    def _propose(self, job: _Job, logits: Logits) -> None:
        """Append the next token to the job's draft, or end the draft."""
        token, probability, probs = self._sampler.propose(logits, job.request, job.tokens)
        if probs is None:
            reached = job.survival
            job.survival *= probability
            if not probability or probability < self._min_p or job.survival < job.limit.min_survival:
                return
            if self._trees and probability < UNCERTAIN:
                self._propose_second(job, logits, token, probability, reached)
        else:
            # A token that was drawn from q must be kept whatever its probability (dropping it would bias the
            # output), so the estimate may only depend on q: the probability that two draws agree.
            probability = float(probs @ probs)
            job.survival *= probability
            job.probs.append(probs)
        job.tokens.append(token)
        job.confidence.append(probability)
        ended = token in self._end_tokens or len(job.tokens) >= job.depth
        if not ended and job.survival >= job.limit.min_survival:
            job.todo = [token]

    def _propose_second(
        self, job: _Job, logits: Logits, first: int, probability: float, reached: float
    ) -> None:
        """Add the best token except `first` under the same noise, if it is likely enough. `probability`
        belongs to the first token, `reached` to the path to it.
        """
        if reached * min(probability, 1.0 - probability) < SECOND:
            return
        others = logits.copy()
        others[first] = -np.inf
        token, share, _ = self._sampler.propose(others, job.request, job.tokens)
        # The noise may favour a token with a lower probability than the next; it is still the first.
        second = min(probability, (1.0 - probability) * share)
        if reached * second >= SECOND:
            job.second[len(job.tokens)] = token, second
