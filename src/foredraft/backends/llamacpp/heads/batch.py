"""Rows for a head's context: a token beside a hidden state, or, for an encoder, hidden states alone."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from foredraft.backends.llamacpp import abi
from foredraft.types import Features

COORDINATES, _LAST_COORDINATE = 4, 3
"""Of a position, at most, with M-RoPE: time, height, width, and one that is not used."""


@dataclass(frozen=True, slots=True)
class Pairs:
    """Consecutive rows of one sequence of the context: tokens at positions from `start` on, and the hidden
    state beside each, shape (rows, numbers). `place`: the first one's among all rows of the forward.
    """

    seq: int
    start: int
    tokens: Sequence[int]
    states: Features
    place: int

    def __len__(self) -> int:
        return len(self.tokens)

    def part(self, first: int, end: int) -> Pairs:
        """Rows `first` to `end` - 1."""
        return Pairs(
            self.seq,
            self.start + first,
            self.tokens[first:end],
            self.states[first:end],
            self.place + first,
        )


class HeadBatch:
    """A llama_batch with room for `capacity` rows. Its arrays belong to numpy, so nothing is freed."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._tokens = np.zeros(capacity, np.int32)
        self._positions = np.zeros(COORDINATES * capacity, np.int32)
        self._counts = np.ones(capacity, np.int32)
        self._sequences = np.zeros(capacity, np.int32)
        self._wanted = np.zeros(capacity, np.int8)
        self._pointers = self._sequences.ctypes.data + 4 * np.arange(capacity, dtype=np.uint64)
        self._states = np.empty((0, 0), np.float32)
        self._iota = np.arange(capacity, dtype=np.int32)
        self._token_field = _pointer(self._tokens, ctypes.c_int32)
        self.native = abi.llama_batch(
            pos=_pointer(self._positions, ctypes.c_int32),
            n_seq_id=_pointer(self._counts, ctypes.c_int32),
            seq_id=_pointer(self._pointers, ctypes.POINTER(ctypes.c_int32)),
            logits=_pointer(self._wanted, ctypes.c_int8),
        )

    def fill(self, parts: Sequence[Pairs], *, wanted: bool) -> Any:
        """The batch with these rows, all with logits or none of them."""
        self._lay(parts, wanted=wanted)
        self.native.token = self._token_field
        return self._with(parts)

    def fill_tokens(self, parts: Sequence[Pairs], *, wanted: bool) -> Any:
        """The same without hidden states."""
        self._lay(parts, wanted=wanted)
        self.native.token, self.native.embd = self._token_field, None
        return self.native

    def fill_states(self, parts: Sequence[Pairs], *, wanted: bool, coordinates: int = 1) -> Any:
        """The same with hidden states alone. With `coordinates` numbers of a position, which are those of
        text: all equal but the last, of four.
        """
        count = self._lay(parts, wanted=wanted)
        for other in range(1, coordinates):
            equal = self._positions[:count] if other < _LAST_COORDINATE else 0
            self._positions[other * count : (other + 1) * count] = equal
        self.native.token = None
        return self._with(parts)

    def _lay(self, parts: Sequence[Pairs], *, wanted: bool) -> int:
        """Lay out everything but hidden states; returns the number of rows."""
        end = 0
        for part in parts:
            first, end = end, end + len(part)
            self._tokens[first:end] = part.tokens
            self._positions[first:end] = self._iota[: len(part)] + part.start
            self._sequences[first:end] = part.seq
        self._wanted[:end] = wanted
        self.native.n_tokens = end
        return end

    def _with(self, parts: Sequence[Pairs]) -> Any:
        states = parts[0].states if len(parts) == 1 else np.concatenate([part.states for part in parts])
        self._states = np.ascontiguousarray(states, np.float32)
        self.native.embd = _pointer(self._states, ctypes.c_float)
        return self.native


def _pointer(array: Any, kind: Any) -> Any:
    return ctypes.cast(array.ctypes.data, ctypes.POINTER(kind))
