"""The child process's part of `trial`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from foredraft.backends.llamacpp import abi, binding
from foredraft.backends.llamacpp.adapter_coverage import left_out
from foredraft.backends.llamacpp.adapter_file import read_adapter
from foredraft.backends.llamacpp.adapters import load_adapters
from foredraft.backends.llamacpp.binding import lib
from foredraft.backends.llamacpp.embedder_loading import open_embedder
from foredraft.backends.llamacpp.gguf_file import read_gguf
from foredraft.backends.llamacpp.loading import load_weights, open_weights
from foredraft.config import Adapter, ModelOptions
from foredraft.embedding import Encoded, Pooling
from foredraft.errors import BackendError, ForedraftError, ModelFormatError
from foredraft.protocols import Head, Model, Tokenizer
from foredraft.types import HeadRows, Rows

_CONTEXT, _ROWS = 256, 16
_TEXT = "".join(map(chr, (*range(1, 0x800), *range(0x800, 0xD800, 0x55), *range(0x10000, 0x110000, 0x3FF))))
"""Every byte that text can contain, and some text of every script."""


def _say(message: bytes) -> None:
    """Callback: print llama.cpp's message before it ends the process."""
    sys.stderr.write(message.decode("utf-8", "replace") + "\n")
    sys.stderr.flush()


_said = abi.ggml_abort_callback_t(_say)


def open_model(
    paths: Sequence[str], library: str, kv_type: str, flash_attention: Any, watch: Sequence[str]
) -> None:
    """Load the first file as `loading` does, and use everything in it: each token, all bytes, one row and
    several; then the heads in the other files, "" for its own layers. `library`: the llama.cpp that the user
    named, or empty. `watch`: as in `ModelOptions`.

    Errors that are refused with a message will be raised again by loading. Raises ModelFormatError for faults
    that only appear in use.
    """
    try:
        model = _open(paths[0], library, kv_type, flash_attention, watch)
    except ForedraftError:
        return
    try:
        _read(model.tokenizer)
        _compute(model)
        for sequence in range(model.capabilities.sequences):
            model.release(sequence)
        for head in paths[1:]:
            _try_head(model, head)
    except BackendError as error:
        raise ModelFormatError(error.message) from None
    finally:
        model.close()


def open_head(
    paths: Sequence[str], library: str, kv_type: str, flash_attention: Any, watch: Sequence[str]
) -> None:
    """The same for a head, the second file, of the first; or for the first one's own layers."""
    try:
        model = _open(paths[0], library, kv_type, flash_attention, watch)
    except ForedraftError:
        return
    try:
        _try_head(model, paths[1] if len(paths) > 1 else "")
    except BackendError as error:
        raise ModelFormatError(error.message) from None
    finally:
        model.close()


def open_embedding_model(  # noqa: PLR0917 - a child is called without names
    paths: Sequence[str],
    library: str,
    kv_type: str,
    flash_attention: Any,
    watch: Sequence[str],
    pooling: Pooling | None,
) -> None:
    """The same for an embedding model or reranker, pooled like this."""
    options = trial_options(library, kv_type, flash_attention, watch)
    try:
        model = open_embedder(Path(paths[0]), options, pooling, as_they_lie=True)
    except ForedraftError:
        return
    try:
        _read(model.tokenizer)
        last = model.info.vocab_size - 1
        tokens = [0, last, last // 2][: model.traits.most_tokens]
        model.compute([Encoded(tokens), Encoded(tokens[:1]), model.encode("a")])
    except BackendError as error:
        raise ModelFormatError(error.message) from None
    finally:
        model.close()


def open_adapter(  # noqa: PLR0917 - a child is called without names
    paths: Sequence[str],
    library: str,
    kv_type: str,
    flash_attention: Any,
    watch: Sequence[str],
    scale: str,
) -> list[str]:
    """The same for a LoRA adapter, the second file, of the first, at this scale. Returns the matrices that
    llama.cpp would leave out (`adapter_coverage.left_out`).
    """
    adapter = Adapter("tried", ((Path(paths[1]), float(scale)),))
    options = replace(trial_options(library, kv_type, flash_attention, watch), adapters=(adapter,))
    try:
        model = open_weights(Path(paths[0]), options, as_they_lie=True)
    except ForedraftError:
        return []
    try:
        numbers = _compute(model)
        for sequence in range(model.capabilities.sequences):
            model.release(sequence)
            model.adapt(sequence, adapter.name)
        if numbers and not _compute(model):
            raise ModelFormatError(f"at a scale of {scale} it computes what is no number; try a smaller one")
    except BackendError as error:
        raise ModelFormatError(error.message) from None
    finally:
        model.close()
    return _left_out(Path(paths[0]), Path(paths[1]), options)


def _left_out(path: Path, adapter: Path, options: ModelOptions) -> list[str]:
    weights, _ = load_weights(path, options, as_they_lie=True)
    try:
        summary = read_gguf(path)
        [loaded] = load_adapters(options.adapters, weights, summary, as_they_lie=True).values()
        return left_out(read_adapter(adapter), loaded, weights, summary)
    except BackendError as error:
        raise ModelFormatError(error.message) from None
    finally:
        lib.llama_model_free(weights)


def _try_head(model: Model, path: str) -> None:
    """Compute drafts of a head: a file's, or "" for the model's own layers."""
    try:
        head = model.load_head(Path(path) if path else None, sequences=2)
    except ForedraftError:
        return
    _draft(model, head)
    head.close()


def _open(
    path: str,
    library: str,
    kv_type: str,
    flash_attention: Any,
    watch: Sequence[str],
) -> Model:
    return open_weights(Path(path), trial_options(library, kv_type, flash_attention, watch), as_they_lie=True)


def trial_options(library: str, kv_type: str, flash_attention: Any, watch: Sequence[str]) -> ModelOptions:
    """Those of every trial, with the library that the user named."""
    binding.choose(Path(library) if library else None)
    lib.ggml_set_abort_callback(_said)  # without a callback a debugger would be started
    return ModelOptions(
        context_at_most=_CONTEXT,
        sequences=2,
        threads=1,  # several threads wait for each other on a busy machine
        batch=_ROWS,
        ubatch=_ROWS,
        gpu_layers=0,
        kv_type=kv_type,
        flash_attention=flash_attention,
        watch=tuple(watch),
        probe=False,
    )


def _read(tokenizer: Tokenizer) -> None:
    tokenizer.encode(_TEXT)
    tokenizer.encode(_TEXT, special=True, add_bos=True)
    for token in range(tokenizer.vocab_size):
        tokenizer.token_bytes(token)


def _compute(model: Model) -> bool:
    """Compute the first and last token, as several rows and as one, beside another sequence; and roll rows
    back. Returns whether all logits are numbers.
    """
    room = model.info.context_length
    tokens = [0, model.info.vocab_size - 1, model.info.vocab_size // 2][:room]
    numbers = not np.isnan(model.forward([Rows(0, 0, tokens, len(tokens))])).any()
    if model.capabilities.features and not np.isfinite(model.features()).all():
        raise ModelFormatError("its hidden states are no finite numbers")
    if room <= len(tokens):
        return numbers
    logits = model.forward([Rows(0, len(tokens), tokens[:1], 1), Rows(1, 0, tokens, 1)])
    numbers &= not np.isnan(logits).any()
    model.restore(1, model.snapshot(0))
    model.release(0)
    return numbers


def _draft(model: Model, head: Head) -> None:
    """Compute rows of two sequences, and a draft after each."""
    last = model.info.vocab_size - 1
    tokens = [0, last, last // 2][: model.info.context_length]
    model.forward([Rows(0, 0, tokens, 1)])
    states = model.features()[:-1].copy()
    if not len(states):
        return
    batches = [[HeadRows(seq, 1, tokens[1:], states, head.block or 1 + seq) for seq in range(2)]]
    if not head.block:
        batches.append([HeadRows(seq, len(tokens), tokens[:1], None, 1) for seq in range(2)])
    for batch in batches:
        if np.isnan(head.forward(batch)).any():
            raise ModelFormatError("it computes what is no number")
    head.truncate(0, len(tokens))
    head.release(1)
    model.release(0)
