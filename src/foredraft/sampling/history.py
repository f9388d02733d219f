"""Counts of the tokens in a text, for the penalties."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt


class TokenCounts:
    """Token counts of prompt and output. The repetition penalty uses both, the other two only the output.

    `seen` has shape (vocabulary,), true for every token of prompt or output; `output` has shape
    (vocabulary,), the number of times each was generated.
    """

    __slots__ = ("output", "seen")

    def __init__(self, vocab_size: int, prompt: Sequence[int] = ()) -> None:
        self.seen: npt.NDArray[np.bool_] = np.zeros(vocab_size, np.bool_)
        self.output: npt.NDArray[np.int32] = np.zeros(vocab_size, np.int32)
        if len(prompt):
            self.seen[np.asarray(prompt, np.int64)] = True

    def add(self, token: int) -> None:
        """Count a generated token."""
        self.seen[token] = True
        self.output[token] += 1

    def extended(self, tokens: Sequence[int]) -> TokenCounts:
        """The counts after generating `tokens`; the object itself if there are none."""
        if not tokens:
            return self
        after = TokenCounts(0)
        after.seen, after.output = self.seen.copy(), self.output.copy()
        for token in tokens:
            after.add(token)
        return after
