"""The header of an EAGLE-3 file, compared with the model that it is to draft for."""

from __future__ import annotations

from dataclasses import dataclass

from foredraft.backends.llamacpp.gguf_file import GGUFSummary
from foredraft.backends.llamacpp.heads.checks import (
    check_tensor,
    check_tokens,
    chosen_of,
    damaged,
    needs_of,
    of_another,
    tensors_of,
)
from foredraft.errors import UnsupportedModelError
from foredraft.library.head_kinds import EAGLE3

WINDOW = "foredraft.window"
"""The key for how many rows a row depends on, itself included: 1, or 0 for all."""

_LAYERS = 3


@dataclass(frozen=True, slots=True)
class Eagle3File:
    """A head that fits its target. `needs`: the target's hidden states that it reads; `state`: the size of
    its own. `window`: see `WINDOW`.
    """

    summary: GGUFSummary
    needs: tuple[str, ...]
    state: int
    window: int


def read_eagle3(head: GGUFSummary, target: GGUFSummary) -> Eagle3File:
    """Raises UnsupportedModelError if it is the head of another model, ModelFormatError if it is damaged."""
    needs = needs_of(head, target, count=_LAYERS)
    _check_sizes(head, target)
    _check_tensors(head, target)
    window = head.metadata.get(WINDOW, 0)
    if window not in (0, 1) or isinstance(window, bool):
        raise damaged(head, f"{WINDOW} is {window}, not 0 or 1")
    return Eagle3File(head, needs, head.embedding_length, int(window))


def _check_sizes(head: GGUFSummary, target: GGUFSummary) -> None:
    made_for = head.metadata.get(f"{EAGLE3}.target_hidden_size")
    if made_for != target.embedding_length:
        raise of_another(head, target, f"hidden states of {made_for} numbers", target.embedding_length)
    check_tokens(head, target)
    if head.block_count != 1:
        raise UnsupportedModelError(
            f"{head.path.name} has {head.block_count} layers; llama.cpp computes EAGLE-3 heads with one.",
            hint="Use a head with one layer.",
        )


def _check_tensors(head: GGUFSummary, target: GGUFSummary) -> None:
    width, vocabulary, outputs = head.embedding_length, head.vocab_size, chosen_of(head)
    shared = width == target.embedding_length
    reduced = "d2t" in tensors_of(head)
    for name, shape, may_be_the_targets in (
        ("fc.weight", (_LAYERS * target.embedding_length, width), False),
        ("token_embd.weight", (width, vocabulary), shared),
        ("output.weight", (width, outputs), shared and not reduced),
    ):
        check_tensor(head, name, shape, may_be_missing=may_be_the_targets)
