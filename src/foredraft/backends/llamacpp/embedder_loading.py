"""Loading a GGUF file as an embedding model or a reranker."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from foredraft.backends.cpu import physical_cores
from foredraft.backends.llamacpp import abi, devices, kernels, log, trial
from foredraft.backends.llamacpp.binding import lib
from foredraft.backends.llamacpp.embedder import POOLING_TYPES, LlamaCppEmbedder
from foredraft.backends.llamacpp.gguf_file import GGUFSummary, check_file, read_gguf
from foredraft.backends.llamacpp.kv_types import EVERYWHERE
from foredraft.backends.llamacpp.loading import (
    ContextSettings,
    create_context,
    describe,
    load_weights,
    positions_of,
)
from foredraft.backends.llamacpp.tokenizer import LlamaCppTokenizer
from foredraft.backends.rope import Positions
from foredraft.config import DEFAULT_CONTEXT, ModelOptions
from foredraft.embedding import EmbedderTraits, Pooling, Scores
from foredraft.errors import ConfigError, ForedraftError, UnsupportedModelError
from foredraft.library.kinds import POOLING_TYPES as IN_FILES
from foredraft.library.kinds import RANK, kind_in_gguf, no_embedder

_YES_OR_NO = frozenset({"qwen3", "qwen3vl"})
"""Architectures whose rerankers llama.cpp ends with a softmax over "yes" and "no"."""


def load_embedder(path: Path, options: ModelOptions, pooling: Pooling | None) -> LlamaCppEmbedder:
    """Load a GGUF. `pooling` replaces that of the file, and makes an embedding model of any. Raises
    ModelError, CapacityError, ConfigError, BackendError, and then frees everything.
    """
    check_file(path)
    summary = read_gguf(path)
    pooled_as(summary, pooling)
    trial.admit_embedder(summary, options, pooling)
    return open_embedder(path, options, pooling)


def pooled_as(summary: GGUFSummary, pooling: Pooling | None) -> str:
    """`EmbedderTraits.pooling` of a file. Raises UnsupportedModelError if it has none, ConfigError."""
    stated = summary.metadata.get(f"{summary.architecture}.pooling_type", 0)
    if stated == RANK:
        if pooling is not None:
            raise ConfigError(
                f'{summary.path.name} is a reranker: embeddings = "{pooling}" cannot be set for it.',
                hint="Remove it.",
                setting="embeddings",
            )
        return "rank"
    if pooling is not None:
        return pooling
    if isinstance(stated, int) and stated in IN_FILES:
        return IN_FILES[stated]
    if kind_in_gguf(summary.architecture, summary.metadata) == "generative":
        raise no_embedder(summary.path.name)
    raise UnsupportedModelError(
        f"{summary.path.name} does not say how its tokens become one vector "
        f"({summary.architecture}.pooling_type).",
        hint='Set embeddings = "mean", "cls" or "last" for it, as its authors say.',
    )


def open_embedder(
    path: Path, options: ModelOptions, pooling: Pooling | None, *, as_they_lie: bool = False
) -> LlamaCppEmbedder:
    """Load a GGUF after its trial, or for it (see `loading.open_weights`). Raises as `load_embedder` does."""
    log.install()
    if not as_they_lie:
        kernels.attach(options.cache_dir)
    summary = read_gguf(path)
    kind = pooled_as(summary, pooling)
    weights, lines = load_weights(path, options, as_they_lie=as_they_lie)
    try:
        _check(path, weights)
        positions = positions_of(path, weights, options)
        traits = _traits(summary, weights, options, kind, positions.reach)
        tokenizer = LlamaCppTokenizer(weights, None)
        settings = _settings(options, traits, positions, devices.placed(lines))
        info = describe(path, weights, tokenizer, settings, options)
        info = replace(info, settings=_told(info.settings, traits), memory=log.buffer_sizes(lines))

        def create(room: int) -> Any:
            return _context(weights, settings, traits, room)

        return LlamaCppEmbedder(
            weights, tokenizer, info, traits, create=create, template=_rerank_template(weights)
        )
    except ForedraftError:
        lib.llama_model_free(weights)
        raise


def _check(path: Path, weights: Any) -> None:
    """Raises UnsupportedModelError for what cannot embed."""
    if lib.llama_model_has_encoder(weights) and lib.llama_model_has_decoder(weights):
        raise UnsupportedModelError(
            f"{path.name} has an encoder and a decoder, and is no embedding model.",
            hint="Convert its encoder alone.",
        )
    if lib.llama_vocab_n_tokens(lib.llama_model_get_vocab(weights)) == 0:
        raise UnsupportedModelError(f"{path.name} has no vocabulary.", hint="Convert it with its tokenizer.")


def _traits(
    summary: GGUFSummary, weights: Any, options: ModelOptions, pooling: str, reach: int
) -> EmbedderTraits:
    """`reach`: the most tokens that the model's positions are for; 0 if that is not known."""
    most = options.context_length or min(reach or DEFAULT_CONTEXT, options.context_at_most, DEFAULT_CONTEXT)
    if pooling != "rank":
        size = int(lib.llama_model_n_embd_out(weights))
        return EmbedderTraits(kind="embedding", dimensions=size, most_tokens=most, pooling=pooling)
    classes = int(lib.llama_model_n_cls_out(weights))
    answers = classes == 2 and summary.architecture in _YES_OR_NO
    if classes != 1 and not answers:
        raise UnsupportedModelError(
            f"{summary.path.name} sorts texts into {classes} classes, and scores none.",
            hint="Use a reranker: a model with one label.",
        )
    scores: Scores = "probability" if answers else "logit"
    return EmbedderTraits(
        kind="reranker", dimensions=1, most_tokens=most, pooling=pooling, normalized=False, scores=scores
    )


def _settings(
    options: ModelOptions, traits: EmbedderTraits, positions: Positions, device: str
) -> ContextSettings:
    return ContextSettings(
        context_length=traits.most_tokens,
        sequences=1,
        threads=options.threads or physical_cores(),
        batch=options.batch,
        ubatch=options.ubatch,
        kv_types=EVERYWHERE,
        flash_attention=options.flash_attention,
        device=device,
        positions=positions,
    )


def _told(settings: Any, traits: EmbedderTraits) -> dict[str, str]:
    """What `doctor` shows of the settings."""
    left = {name: settings[name] for name in ("threads", "memory", "gpu_layers") if name in settings}
    return {**left, "pooling": traits.pooling, "dimensions": str(traits.dimensions)}


def _context(weights: Any, settings: ContextSettings, traits: EmbedderTraits, room: int) -> Any:
    def adjust(params: Any) -> None:
        params.embeddings = True
        params.pooling_type = POOLING_TYPES.get(traits.pooling, abi.LLAMA_POOLING_TYPE_RANK)  # type: ignore[call-overload]

    sized = replace(settings, batch=room, ubatch=room)
    context, _ = create_context(weights, sized, fallback=False, adjust=adjust)
    return context


def _rerank_template(weights: Any) -> str | None:
    raw = lib.llama_model_chat_template(weights, b"rerank")
    text = raw.decode("utf-8", "replace") if raw else ""
    before, _, _ = text.partition("{document}")
    return text if "{query}" in before and before != text else None
