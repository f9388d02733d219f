"""What tests of heads share: a target's hidden states, and the rows made of them."""

from __future__ import annotations

import numpy as np

from foredraft.protocols import Model
from foredraft.types import Features, HeadRows, Logits, Rows


def states(model: Model, text: list[int]) -> Features:
    """The target's hidden states of a text's tokens."""
    model.release(0)
    model.forward([Rows(0, 0, text, 1)])
    found = model.features().copy()
    model.release(0)
    return found


def rows(seq: int, text: list[int], features: Features, start: int, end: int, logits: int) -> HeadRows:
    """The rows of tokens `start` to `end` - 1."""
    return HeadRows(seq, start, text[start:end], features[start - 1 : end - 1], logits)


def alike(left: Logits, right: Logits) -> bool:
    """Equal but for rounding."""
    finite = np.isfinite(left)
    return np.array_equal(finite, np.isfinite(right)) and np.allclose(
        left[finite], right[finite], rtol=2e-2, atol=5e-2
    )
