"""What the header of a head's file is compared with: the model that it is to draft for.

llama.cpp checks the shapes of most of a head's tensors, and asserts what does not fit the target when it
computes. So what has to be equal is compared before either is loaded.
"""

from __future__ import annotations

import numpy as np

from foredraft.backends.llamacpp import features
from foredraft.backends.llamacpp.gguf_file import GGUFSummary
from foredraft.backends.llamacpp.gguf_native import Array, Tensor
from foredraft.errors import ModelFormatError, UnsupportedModelError

CHOSEN = "d2t"
"""The tensor with the tokens of a reduced vocabulary."""


def needs_of(head: GGUFSummary, target: GGUFSummary, *, count: int = 0) -> tuple[str, ...]:
    """The target's hidden states that a head reads, of `count` layers (0: of any number). Raises
    ModelFormatError, and UnsupportedModelError if the target does not return them.
    """
    key = f"{head.architecture}.target_layers"
    stored = head.metadata.get(key)
    # An array's `head` are its first numbers, which are all if there are few.
    numbers = stored.head if isinstance(stored, Array) and len(stored.head) == stored.length else ()
    if not numbers or not all(isinstance(number, int) and number >= 0 for number in numbers):
        raise damaged(head, f"{key} is {stored}, not the numbers of layers")
    if count and len(numbers) != count:
        raise damaged(head, f"{key} names {len(numbers)} layers, not {count}")
    needs = tuple(features.layer(int(number)) for number in numbers)
    if len(set(needs)) < len(needs):
        raise damaged(head, f"{key} names a layer twice")
    following = features.next_layers(target)
    layers = target.block_count - following
    features.check(target.path.name, needs, target.architecture, layers=layers, following=following)
    return needs


def check_tokens(head: GGUFSummary, target: GGUFSummary) -> None:
    """Raises UnsupportedModelError if the head has other tokens than the target, as far as that is visible
    in the headers.
    """
    if head.vocab_size != target.vocab_size:
        raise of_another(head, target, f"{head.vocab_size} tokens", target.vocab_size)
    for key in ("tokenizer.ggml.model", "tokenizer.ggml.pre"):
        stated, wanted = head.metadata.get(key), target.metadata.get(key)
        if stated is not None and wanted is not None and stated != wanted:
            raise of_another(head, target, f"the tokenizer {stated}", wanted)


def check_tensor(head: GGUFSummary, name: str, shape: tuple[int, ...], *, may_be_missing: bool) -> None:
    """Raises ModelFormatError if a tensor is not there or has another shape."""
    tensor = tensors_of(head).get(name)
    if tensor is None and not may_be_missing:
        raise damaged(head, f"it has no {name}")
    if tensor is not None and tensor.shape != shape:
        raise damaged(head, f"{name} has the shape {tensor.shape}, not {shape}")


def chosen_of(head: GGUFSummary) -> int:
    """How many tokens a head can propose: those of a reduced vocabulary, or all. Raises ModelFormatError for
    tokens that are none: llama.cpp would write beside the logits.
    """
    chosen, vocabulary = tensors_of(head).get(CHOSEN), head.vocab_size
    if chosen is None:
        return vocabulary
    if chosen.type != "i64" or len(chosen.shape) != 1 or not 0 < chosen.elements <= vocabulary:
        raise damaged(head, f"{CHOSEN} is no list of tokens")
    tokens = np.fromfile(chosen.path, "<i8", chosen.elements, offset=chosen.offset)
    if len(tokens) != chosen.elements or tokens.min() < 0 or tokens.max() >= vocabulary:
        raise damaged(head, f"{CHOSEN} has tokens that are not among the {vocabulary} of its vocabulary")
    return chosen.elements


def tensors_of(head: GGUFSummary) -> dict[str, Tensor]:
    """A file's tensors by name."""
    return {tensor.name: tensor for tensor in head.tensors}


def of_another(head: GGUFSummary, target: GGUFSummary, has: str, wanted: object) -> UnsupportedModelError:
    """The error for a head that was made for a model that differs in something."""
    return UnsupportedModelError(
        f"{head.path.name} is a head of another model: it is for {has}, and {target.path.name} has {wanted}.",
        hint="Use a head that was trained for this model.",
    )


def damaged(head: GGUFSummary, fault: str) -> ModelFormatError:
    """The error for a head that no target could use."""
    return ModelFormatError(
        f"{head.path} cannot be used as a head: {fault}.",
        hint="The file is damaged or was converted incorrectly: download or convert it again.",
    )
