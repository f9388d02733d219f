"""A reusable llama_batch, filled through numpy views instead of one ctypes store per field and row."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import numpy as np

from foredraft.backends.llamacpp.binding import lib
from foredraft.types import Rows


class Batch:
    """Room for `capacity` rows, each belonging to one sequence."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.native = lib.llama_batch_init(capacity, 0, 1)
        shape = (capacity,)
        self._tokens = np.ctypeslib.as_array(self.native.token, shape)
        self._positions = np.ctypeslib.as_array(self.native.pos, shape)
        self._counts = np.ctypeslib.as_array(self.native.n_seq_id, shape)
        self._wanted = np.ctypeslib.as_array(self.native.logits, shape)
        self._counts[:] = 1
        self._iota = np.arange(capacity, dtype=np.int32)
        # llama_batch_init allocates one seq_id array per row; one shared array lets us fill it in bulk.
        self._sequences = np.zeros(capacity, dtype=np.int32)
        base = self._sequences.ctypes.data
        pointers = ctypes.cast(self.native.seq_id, ctypes.POINTER(ctypes.c_void_p))
        self._original = [pointers[i] for i in range(capacity)]
        for i in range(capacity):
            pointers[i] = base + 4 * i

    def fill(
        self,
        batch: Sequence[Rows],
        streams: Sequence[int],
        even: int = 0,
        begins: Sequence[int] | None = None,
    ) -> None:
        """Write the rows, with the stream of each sequence. A sequence with fewer than `even` rows is padded
        by repeating its last token. `begins`: the positions of first rows, if they are not their cells. The
        caller has checked the capacity.
        """
        end = 0
        for i, rows in enumerate(batch):
            first, own = end, end + len(rows.tokens)
            count = max(len(rows.tokens), even)
            end += count
            self._tokens[first:own] = rows.tokens
            self._tokens[own:end] = rows.tokens[-1]
            self._positions[first:end] = self._iota[:count] + (begins[i] if begins else rows.start)
            self._sequences[first:end] = streams[rows.seq]
            self._wanted[first:end] = 0
            self._wanted[own - rows.logits : own] = 1
        self.native.n_tokens = end

    def free(self) -> None:
        """Return the memory to llama.cpp, which frees the arrays that it allocated."""
        pointers = ctypes.cast(self.native.seq_id, ctypes.POINTER(ctypes.c_void_p))
        for i, original in enumerate(self._original):
            pointers[i] = original
        lib.llama_batch_free(self.native)
