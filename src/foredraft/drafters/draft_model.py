"""`draft-model`: drafts by a smaller model (Leviathan et al. 2023, arXiv 2211.17192).

Each request has its own KV sequence in the draft model, which is only fed when a draft is requested
(`stepwise`). A model with another vocabulary drafts through `translation/`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from foredraft.config import checked_by, read_options
from foredraft.drafters.stepwise import CHAIN, SECONDS, Chunk, Sequences, StepwiseDrafter
from foredraft.drafters.translation.choice import WAYS, compare, describe
from foredraft.drafters.translation.drafter import TranslatingDrafter
from foredraft.errors import SpeculationStringError, UnsupportedModelError, quoted
from foredraft.protocols import Drafter, DrafterContext, Model, RequestView, TokenSampler
from foredraft.types import Logits, Outcome, Rollback, Rows

NAME = "draft-model"


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


@checked_by(_read)
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
        holds = model.info.context_length
        if holds < context.target.context_length:
            context.notice(f"{model.info.name} drafts up to {holds:,} tokens of a text: it holds no more")
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


class DraftModelDrafter(StepwiseDrafter):
    """Drafts with `model`, which it owns. `end_tokens` are the model's by default. `trees`: an uncertain
    token gets a sibling, the second choice under the same noise, which is the likeliest alternative if the
    target rejects the first. The other options are those of `StepwiseDrafter`.
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
        super().__init__(
            sampler,
            model.tokenizer.end_tokens if end_tokens is None else end_tokens,
            rows=model.capabilities.max_batch,
            max_tokens=max_tokens,
            min_tokens=min_tokens,
            min_p=min_p,
            width=SECONDS if trees else CHAIN,
        )
        self._model = model
        self.parameters = model.info.parameters
        self._sequences = Sequences(model.capabilities.sequences)
        self._cells: dict[int, list[int]] = {}
        """The tokens in the cache of each request: the fed part of the history, followed between a draft and
        its outcome by tokens of that draft.
        """

    def start(self, request: RequestView) -> None:
        """Nothing to do: a sequence is allocated with the first draft."""

    def observe(self, request: RequestView, outcome: Outcome) -> None:
        cells, tokens = self._cells.get(request.id, ()), request.tokens
        agreed = min(len(cells), outcome.kept)
        end = min(len(cells), len(tokens))
        while agreed < end and cells[agreed] == tokens[agreed]:
            agreed += 1
        self._cut(request, agreed)

    def stop(self, request: RequestView) -> None:
        number = self._sequences.give_back(request.id)
        if number is not None:
            self._cells.pop(request.id, None)
            self._model.release(number)

    def close(self) -> None:
        self._cells.clear()
        self._model.close()

    def _begin(self, request: RequestView) -> tuple[int, int, int] | None:
        length = len(request.tokens)
        # A draft's last token is never fed, so d tokens need d − 1 cells beyond the history.
        room = self._model.info.context_length - length + 1
        number = self._sequences.take(request.id) if room > 0 else None
        if number is None:
            return None
        cells = self._cells.setdefault(request.id, [])
        # If the cache already contains the last token it is fed again, because its logits are gone. Cells of
        # an earlier draft after the same history are dropped.
        self._cut(request, length - 1)
        return number, len(cells), room

    def _cut(self, request: RequestView, length: int) -> None:
        cells, number = self._cells.get(request.id, []), self._sequences.of(request.id)
        if length < len(cells) and number is not None:
            self._model.truncate(number, length)
            del cells[length:]

    def _feed(self, chunks: Sequence[Chunk]) -> Logits:
        logits = self._model.forward([Rows(it.job.number, it.start, it.tokens, it.logits) for it in chunks])
        for job, _, tokens, _, _ in chunks:
            self._cells[job.request.id].extend(tokens)
        return logits
