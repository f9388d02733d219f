"""The state of a sequence as bytes: all of it, or a recurrent state alone."""

from __future__ import annotations

import ctypes
from typing import Any

from foredraft.backends.llamacpp import abi
from foredraft.backends.llamacpp.binding import lib
from foredraft.errors import BackendError

ALL = abi.LLAMA_STATE_SEQ_FLAGS_NONE
RECURRENT = abi.LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY


def size(context: Any, stream: int, part: int) -> int:
    """The bytes that `save` writes."""
    return int(lib.llama_state_seq_get_size_ext(context, stream, part))


def save(context: Any, stream: int, part: int, buffer: bytearray | None = None) -> bytearray:
    """A stream's state, in `buffer` if that has the right size. Raises BackendError."""
    count = size(context, stream, part)
    if buffer is None or len(buffer) != count:
        buffer = bytearray(count)
    data = (ctypes.c_uint8 * count).from_buffer(buffer)
    written = lib.llama_state_seq_get_data_ext(context, data, count, stream, part)
    if written != count:
        raise BackendError(f"llama.cpp saved {written} of {count} bytes of a sequence.")
    return buffer


def load(context: Any, stream: int, part: int, saved: bytearray, count: int | None = None) -> bool:
    """Replace a stream's state by the first `count` bytes of a saved one; returns whether that worked."""
    data = (ctypes.c_uint8 * len(saved)).from_buffer(saved)
    count = len(saved) if count is None else count
    return int(lib.llama_state_seq_set_data_ext(context, data, count, stream, part)) != 0
