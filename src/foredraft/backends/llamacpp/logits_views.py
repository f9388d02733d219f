"""llama.cpp's buffer of logits as arrays."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from foredraft.backends.llamacpp.binding import lib
from foredraft.errors import BackendError
from foredraft.types import Logits


class LogitsViews:
    """Views of the buffer. It may move when it grows, so its address is part of the key."""

    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self._views: dict[tuple[int, int], Logits] = {}

    def of(self, context: Any, rows: int) -> Logits:
        """The logits of the last forward. Raises BackendError if there are none."""
        if rows == 0:
            return np.empty((0, self._vocab_size), np.float32)
        address = ctypes.cast(lib.llama_get_logits(context), ctypes.c_void_p).value
        if not address:
            raise BackendError("llama.cpp returned no logits.")
        view = self._views.get((address, rows))
        if view is None:
            raw = (ctypes.c_float * (rows * self._vocab_size)).from_address(address)
            view = np.ctypeslib.as_array(raw).reshape(rows, self._vocab_size)
            self._views[(address, rows)] = view
        return view

    def clear(self) -> None:
        """The buffer is about to be freed."""
        self._views.clear()
