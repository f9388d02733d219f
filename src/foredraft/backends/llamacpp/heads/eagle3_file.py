"""The header of an EAGLE-3 file, compared with the model that it is to draft for.

llama.cpp checks the shapes of most of a head's tensors, and asserts what does not fit the target when it
computes. So what has to be equal is compared before either is loaded.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from foredraft.backends.llamacpp import features
from foredraft.backends.llamacpp.gguf_file import GGUFSummary, read_gguf
from foredraft.backends.llamacpp.gguf_native import Array, Tensor
from foredraft.errors import ModelFormatError, UnsupportedModelError

EAGLE3 = "eagle3"
WINDOW = "foredraft.window"
"""The key for how many rows a row depends on, itself included: 1, or 0 for all."""

_LAYERS = 3
_BLOCK_DIFFUSION = {"dflash": "DFlash", "gemma4-assistant": "Gemma 4 assistant"}


@dataclass(frozen=True, slots=True)
class Eagle3File:
    """A head that fits its target. `needs`: the target's hidden states that it reads; `state`: the size of
    its own. `window`: see `WINDOW`.
    """

    summary: GGUFSummary
    needs: tuple[str, ...]
    state: int
    window: int


def read_eagle3(path: Path, target: GGUFSummary) -> Eagle3File:
    """Read a head for the target. Raises what `read_gguf` does, UnsupportedModelError if it is no head, or
    one of another model or kind, and ModelFormatError if it is damaged.
    """
    if path.is_dir():
        raise UnsupportedModelError(
            f"{path.name} is a folder, and the head of a GGUF model is a GGUF file.",
            hint="A folder of safetensors is a head for models in such folders. Name a GGUF file.",
        )
    head = read_gguf(path)
    _check_kind(head)
    needs = _needs(head, target)
    _check_sizes(head, target)
    _check_tensors(head, target)
    window = head.metadata.get(WINDOW, 0)
    if window not in (0, 1) or isinstance(window, bool):
        raise _damaged(head, f"{WINDOW} is {window}, not 0 or 1")
    return Eagle3File(head, needs, head.embedding_length, int(window))


def _check_kind(head: GGUFSummary) -> None:
    name = head.path.name
    if head.architecture in _BLOCK_DIFFUSION:
        raise UnsupportedModelError(
            f"{name} is a {_BLOCK_DIFFUSION[head.architecture]} head, which Foredraft cannot use.",
            hint="Use an EAGLE-3 head of the same model, if there is one.",
        )
    if head.architecture != EAGLE3:
        raise UnsupportedModelError(
            f"{name} is not a trained head: its architecture is {head.architecture}.",
            hint="If it is a small model of the same kind, use it as a draft model: draft-model:model=FILE.",
        )


def _needs(head: GGUFSummary, target: GGUFSummary) -> tuple[str, ...]:
    stored = head.metadata.get(f"{EAGLE3}.target_layers")
    numbers = stored.head if isinstance(stored, Array) and stored.length == _LAYERS else ()
    if len(numbers) != _LAYERS or not all(isinstance(number, int) and number >= 0 for number in numbers):
        raise _damaged(head, f"{EAGLE3}.target_layers is {stored}, not the numbers of three layers")
    needs = tuple(features.layer(int(number)) for number in numbers)
    following = features.next_layers(target)
    layers = target.block_count - following
    if len(set(needs)) < _LAYERS:
        raise _damaged(head, f"{EAGLE3}.target_layers names a layer twice")
    features.check(target.path.name, needs, target.architecture, layers=layers, following=following)
    return needs


def _check_sizes(head: GGUFSummary, target: GGUFSummary) -> None:
    made_for = head.metadata.get(f"{EAGLE3}.target_hidden_size")
    if made_for != target.embedding_length:
        raise _of_another(head, target, f"hidden states of {made_for} numbers", target.embedding_length)
    if head.vocab_size != target.vocab_size:
        raise _of_another(head, target, f"{head.vocab_size} tokens", target.vocab_size)
    for key in ("tokenizer.ggml.model", "tokenizer.ggml.pre"):
        stated, wanted = head.metadata.get(key), target.metadata.get(key)
        if stated is not None and wanted is not None and stated != wanted:
            raise _of_another(head, target, f"the tokenizer {stated}", wanted)
    if head.block_count != 1:
        raise UnsupportedModelError(
            f"{head.path.name} has {head.block_count} layers; llama.cpp computes EAGLE-3 heads with one.",
            hint="Use a head with one layer.",
        )


def _check_tensors(head: GGUFSummary, target: GGUFSummary) -> None:
    tensors = {tensor.name: tensor for tensor in head.tensors}
    width, vocabulary = head.embedding_length, head.vocab_size
    chosen = tensors.get("d2t")
    outputs = chosen.elements if chosen else vocabulary
    shared = width == target.embedding_length
    for name, shape, may_be_the_targets in (
        ("fc.weight", (_LAYERS * target.embedding_length, width), False),
        ("token_embd.weight", (width, vocabulary), shared),
        ("output.weight", (width, outputs), shared and chosen is None),
    ):
        tensor = tensors.get(name)
        if tensor is None and not may_be_the_targets:
            raise _damaged(head, f"it has no {name}")
        if tensor is not None and tensor.shape != shape:
            raise _damaged(head, f"{name} has the shape {tensor.shape}, not {shape}")
    if chosen is not None:
        _check_chosen(head, chosen, vocabulary)


def _check_chosen(head: GGUFSummary, chosen: Tensor, vocabulary: int) -> None:
    """The tokens of a reduced vocabulary: llama.cpp would write beside the logits for others."""
    if chosen.type != "i64" or len(chosen.shape) != 1 or not 0 < chosen.elements <= vocabulary:
        raise _damaged(head, "d2t is no list of tokens")
    tokens = np.fromfile(chosen.path, "<i8", chosen.elements, offset=chosen.offset)
    if len(tokens) != chosen.elements or tokens.min() < 0 or tokens.max() >= vocabulary:
        raise _damaged(head, f"d2t has tokens that are not among the {vocabulary} of its vocabulary")


def _of_another(head: GGUFSummary, target: GGUFSummary, has: str, wanted: object) -> UnsupportedModelError:
    return UnsupportedModelError(
        f"{head.path.name} is a head of another model: it is for {has}, and {target.path.name} has {wanted}.",
        hint="Use a head that was trained for this model.",
    )


def _damaged(head: GGUFSummary, fault: str) -> ModelFormatError:
    return ModelFormatError(
        f"{head.path} cannot be used as a head: {fault}.",
        hint="The file is damaged or was converted incorrectly: download or convert it again.",
    )
