"""Reading answers once more with a target that returns its hidden states, and keeping what a head learns."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from foredraft.draft.make.store import TOP, Labelled
from foredraft.protocols import Model
from foredraft.types import Logits, Rows

ROWS = 64
"""Rows of a forward at most: logits of a large vocabulary for each of them are 50 MB."""

_BLOCK = 128


def read_rows(model: Model, prompt: Sequence[int], answer: Sequence[int]) -> Labelled | None:
    """The rows of an answer, of a model that was loaded with the features of three layers; None if it does
    not fit the context. The row of a last token that ends the text is left out: nothing follows it.

    Raises BackendError, OutOfKVError.
    """
    ends = model.tokenizer.end_tokens
    tokens = [*prompt, *(answer[:-1] if answer[-1] in ends else answer)]
    first = len(prompt) - 1
    if len(tokens) > model.info.context_length or len(tokens) - first < 2:
        return None
    features: list[npt.NDArray[np.float32]] = []
    likely: list[npt.NDArray[np.int32]] = []
    scores: list[npt.NDArray[np.float32]] = []
    model.release(0)
    try:
        for start, end in _chunks(len(tokens), first, min(ROWS, model.capabilities.max_rows)):
            wanted = end - start if start >= first else 0
            logits = model.forward([Rows(0, start, tokens[start:end], wanted)])
            if wanted:
                features.append(np.array(model.features()))
                top, values = likeliest(logits)
                likely.append(top)
                scores.append(values)
    finally:
        model.release(0)
    return Labelled(
        np.concatenate(features),
        np.asarray(tokens[first:], np.int32),
        np.concatenate(likely),
        np.concatenate(scores),
    )


def _chunks(length: int, first: int, most: int) -> list[tuple[int, int]]:
    """(start, end) of forwards; the rows from `first` on are in forwards of their own."""
    edges = [*range(0, first, most), *range(first, length, most), length]
    return list(pairwise(edges))


def likeliest(logits: Logits) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float32]]:
    """The `TOP` likeliest tokens of each row, likeliest first, and their log-probabilities.

    They are looked for in the `TOP` blocks with the largest maxima: ordering a whole row of 50,000 costs as
    much as a forward.
    """
    rows, size = logits.shape
    top = min(TOP, size)
    whole = size // _BLOCK * _BLOCK
    blocks = logits[:, :whole].reshape(rows, whole // _BLOCK, _BLOCK)
    if blocks.shape[1] > 4 * top:
        best = np.argpartition(blocks.max(2), -top, axis=1)[:, -top:]
        places = (best[:, :, None] * _BLOCK + np.arange(_BLOCK)).reshape(rows, -1)
        rest = np.broadcast_to(np.arange(whole, size), (rows, size - whole))
        places = np.concatenate([places, rest], axis=1)
    else:
        places = np.broadcast_to(np.arange(size), (rows, size))
    values = np.take_along_axis(logits, places, 1)
    order = np.argsort(-values, axis=1, kind="stable")[:, :top]
    chosen = np.take_along_axis(values, order, 1)
    largest = chosen[:, :1]
    total = np.log(np.exp(logits - largest).sum(1, keepdims=True)) + largest
    found = np.take_along_axis(places, order, 1).astype(np.int32)
    padded = np.full((rows, TOP), -1, np.int32), np.full((rows, TOP), -np.inf, np.float32)
    padded[0][:, :top], padded[1][:, :top] = found, chosen - total
    return padded
