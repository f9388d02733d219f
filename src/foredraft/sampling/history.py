"""Which tokens a text holds and how often: what the penalties need to know."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt


class TokenCounts:
    """Counts over prompt and output. The repetition penalty counts both, the other two only the output.

    `seen` has shape (vocabulary,), true for every token of prompt or output; `output` has shape
    (vocabulary,), how often each was generated.
    """

    __slots__ = ("output", "seen")

    def __init__(self, vocab_size: int, prompt: Sequence[int] = ()) -> None:
        self.seen: npt.NDArray[np.bool_] = np.zeros(vocab_size, np.bool_)
        self.output: npt.NDArray[np.int32] = np.zeros(vocab_size, np.int32)
        if len(prompt):
            self.seen[np.asarray(prompt, np.int64)] = True

    def add(self, token: int) -> None:
        """A token was generated."""
        self.seen[token] = True
        self.output[token] += 1

    def extended(self, tokens: Sequence[int]) -> TokenCounts:
        """The counts after `tokens` more were generated; itself when there are none."""
        if not tokens:
            return self
        after = TokenCounts(0)
        after.seen, after.output = self.seen.copy(), self.output.copy()
        for token in tokens:
            after.add(token)
        return after
