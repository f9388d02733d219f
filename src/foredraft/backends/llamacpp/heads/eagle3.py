"""EAGLE-3 in llama.cpp (Li et al. 2025, arXiv 2503.01840): an encoder fuses the hidden states of three layers
of the target into one, and a decoder of one layer reads that beside the next token.

A head whose rows see only themselves (`window` 1, as `foredraft draft make` makes them) keeps no cells: every
row has a sequence of its own for the time of a forward, and rows without logits need not be computed.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from foredraft.backends.llamacpp.binding import lib
from foredraft.backends.llamacpp.heads.batch import Pairs
from foredraft.backends.llamacpp.heads.native import NativeHead, Opened
from foredraft.errors import BackendError
from foredraft.types import Features, HeadRows, Logits

ROWS = 32
"""Rows that are computed at once if they see only themselves: sequences of the context."""


class Eagle3Head(NativeHead):
    """An EAGLE-3 head. Raises BackendError if llama.cpp cannot compute it."""

    def __init__(
        self,
        opened: Opened,
        needs: tuple[str, ...],
        *,
        size: int,
        state: int,
        sequences: int,
        window: int = 0,
    ) -> None:
        super().__init__(opened, needs, size=size, state=state, sequences=sequences)
        self.window = window

    def _check_place(self, rows: HeadRows) -> None:
        if self.window != 1:
            super()._check_place(rows)
        elif rows.features is None and rows.start != self._end[rows.seq]:
            raise BackendError(f"Rows start at {rows.start}; the head's end at {self._end[rows.seq]}.")

    def _states_for(self, batch: Sequence[HeadRows]) -> list[Features]:
        """The target's hidden states fused, or the head's own."""
        needed = [self._needed(rows) for rows in batch]
        given = [
            rows.features[len(rows.tokens) - count :]
            for rows, count in zip(batch, needed, strict=True)
            if rows.features is not None
        ]
        fused = self._encode(np.concatenate(given)) if sum(map(len, given)) else None
        states, end = [], 0
        for rows, count in zip(batch, needed, strict=True):
            if rows.features is None:
                states.append(self._own[rows.seq])
                continue
            assert fused is not None or not count
            part = np.zeros((len(rows.tokens), self._state), np.float32)
            if fused is not None:
                part[len(rows.tokens) - count :] = fused[end : end + count]
            states.append(part)
            end += count
        return states

    def _needed(self, rows: HeadRows) -> int:
        return rows.logits if self.window == 1 else len(rows.tokens)

    def _encode(self, features: Features) -> Features:
        """The target's hidden states fused, shape (rows, own numbers)."""
        fused = np.empty((len(features), self._state), np.float32)
        most = self._batch.capacity
        self._forget_rows()
        for first in range(0, len(features), most):
            part = features[first : first + most]
            self._graphs.use(("encode", len(part)), len(part))
            start = 0 if self.window == 1 else self._end[0]  # positions follow those of the cells
            rows = [Pairs(0, start, [0] * len(part), part, 0)]
            self._check(lib.llama_encode(self._context, self._batch.fill_states(rows, wanted=True)))
            fused[first : first + len(part)] = self._states(len(part))
        return fused

    def _compute(self, batch: Sequence[HeadRows], pairs: Sequence[Pairs]) -> Logits:
        if self.window != 1:
            return super()._compute(batch, pairs)
        wanted = {rows.seq: rows.logits for rows in batch}
        rows = [part.part(i, i + 1) for part in pairs for i in range(len(part) - wanted[part.seq], len(part))]
        return self._answer(batch, *self._run(rows, wanted=bool(rows)))

    def _decode(self, parts: Sequence[Pairs], *, wanted: bool) -> None:
        self._forget_rows()
        if self.window == 1:
            parts = [Pairs(i, 0, one.tokens, one.states, one.place) for i, one in enumerate(parts)]
        super()._decode(parts, wanted=wanted)

    def _forget_rows(self) -> None:
        """Drop all cells if no row sees another one's."""
        context = self._context
        if self.window == 1:
            lib.llama_memory_clear(lib.llama_get_memory(context), False)  # noqa: FBT003 - C

    def _holding(self) -> list[int]:
        return [] if self.window == 1 else super()._holding()

    def _cut(self, seq: int, length: int) -> None:
        if self.window == 1:
            self._forget_rows()
        else:
            super()._cut(seq, length)
