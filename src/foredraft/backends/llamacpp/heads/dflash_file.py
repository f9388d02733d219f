"""The header of a block-diffusion head's file, compared with the model that it is to draft for.

llama.cpp calls all of them `dflash`: DFlash, DFlash2, which has a selector, and DSpark, which has a Markov
head. What of the keys the library does not read itself is read here as its own program does.
"""

from __future__ import annotations

from dataclasses import dataclass

from foredraft.backends.llamacpp.gguf_file import GGUFSummary
from foredraft.backends.llamacpp.heads.checks import (
    CHOSEN,
    check_tensor,
    check_tokens,
    chosen_of,
    damaged,
    needs_of,
    of_another,
    tensors_of,
)
from foredraft.errors import UnsupportedModelError
from foredraft.library.head_kinds import DFLASH
from foredraft.types import MAX_DRAFT_TOKENS

_USUAL_BLOCK = 16
_MARKOV, _SELECTOR = "markov_w1.weight", "selector_hidden.weight"
_MASK = "tokenizer.ggml.mask_token_id"


@dataclass(frozen=True, slots=True)
class DFlashFile:
    """A head that fits its target. `needs`: the target's hidden states that it reads; `state`: the size of
    its own.

    `block`: the most tokens that it drafts at once. `anchored`: the row of the text's last token predicts the
    first of them, else the row after it does. `mask`: the token of all other rows. `causal`: rows of a block
    do not see those after them. `choices`: tokens that its selector has for each place; 0 without a selector.
    """

    summary: GGUFSummary
    needs: tuple[str, ...]
    state: int
    block: int
    anchored: bool
    mask: int
    causal: bool
    choices: int


def read_dflash(head: GGUFSummary, target: GGUFSummary) -> DFlashFile:
    """Raises UnsupportedModelError if it is the head of another model or of a kind that cannot be used,
    ModelFormatError if it is damaged.
    """
    _check_kind(head)
    needs = needs_of(head, target)
    if head.embedding_length != target.embedding_length:
        found = f"hidden states of {head.embedding_length} numbers"
        raise of_another(head, target, found, target.embedding_length)
    check_tokens(head, target)
    _check_tensors(head, len(needs))
    markov = _MARKOV in tensors_of(head)
    anchored = markov and _flag(head, "sample_from_anchor", otherwise=True)
    return DFlashFile(
        head,
        needs,
        head.embedding_length,
        block=min(_block_size(head, markov=markov) - (not anchored), MAX_DRAFT_TOKENS),
        anchored=anchored,
        mask=_mask(head),
        causal=_flag(head, "attention.causal", otherwise=False),
        choices=_choices(head),
    )


def _check_kind(head: GGUFSummary) -> None:
    if head.metadata.get(f"{DFLASH}.hyper_connection.count", 0):
        raise UnsupportedModelError(
            f"{head.path.name} is a DSpark head of a DeepSeek V4, whose layers are those of that model. "
            "Foredraft was never tried with one.",
            hint="Use the model's own layers for multi-token prediction, if its file has any.",
        )
    tensors = tensors_of(head)
    if _MARKOV in tensors and _SELECTOR in tensors:
        raise damaged(head, "it has both a Markov head and a selector")


def _check_tensors(head: GGUFSummary, layers: int) -> None:
    width, vocabulary, outputs = head.embedding_length, head.vocab_size, chosen_of(head)
    check_tensor(head, "fc.weight", (layers * width, width), may_be_missing=False)
    check_tensor(head, "token_embd.weight", (width, vocabulary), may_be_missing=True)
    reduced = CHOSEN in tensors_of(head)
    check_tensor(head, "output.weight", (width, outputs), may_be_missing=not reduced)


def _block_size(head: GGUFSummary, *, markov: bool) -> int:
    """Rows of a block: as many as it was trained with."""
    size = head.metadata.get(f"{DFLASH}.block_size", None if markov else _USUAL_BLOCK)
    if not isinstance(size, int) or isinstance(size, bool) or size < 2:
        raise damaged(head, f"{DFLASH}.block_size is {size}")
    return size


def _flag(head: GGUFSummary, key: str, *, otherwise: bool) -> bool:
    value = head.metadata.get(f"{DFLASH}.{key}", otherwise)
    if not isinstance(value, bool):
        raise damaged(head, f"{DFLASH}.{key} is {value}, neither true nor false")
    return value


def _mask(head: GGUFSummary) -> int:
    token = head.metadata.get(_MASK)
    if not isinstance(token, int) or isinstance(token, bool) or not 0 <= token < head.vocab_size:
        raise damaged(head, f"{_MASK} is {token}, which is no token")
    return token


def _choices(head: GGUFSummary) -> int:
    """The library's graph has a selector if the file has its tensors, and asserts what it takes."""
    if _SELECTOR not in tensors_of(head):
        return 0
    choices = head.metadata.get(f"{DFLASH}.selector_top_k")
    if not isinstance(choices, int) or not 0 < choices <= head.vocab_size:
        raise damaged(head, f"{DFLASH}.selector_top_k is {choices}")
    return choices
