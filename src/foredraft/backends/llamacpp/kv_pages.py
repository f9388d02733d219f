"""Returns the memory of unused KV cells to the system.

llama.cpp allocates cells for the whole context of every sequence and writes zeros to all of them: 720 MB for
four sequences of 8,192 tokens of a 135M model, of which a chat uses a tenth. After a context is created, the
pages of its cells are returned to the system, which provides them again, as zeros, when a cell is written.
Cells are used from the beginning of each sequence on, so unused ones never take memory.

llama.cpp does not report where its cells are. While a context is created, its allocations of plain buffers
pass through a function here, and its log identifies the ones with cells. If either differs (another version,
a GPU, not Linux), nothing is returned.
"""

from __future__ import annotations

import ctypes
import logging
import mmap
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

from foredraft.backends.llamacpp.binding import lib

logger = logging.getLogger(__name__)

_Allocate = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
_ALLOCATE = 1
"""Its index among a buffer type's functions (ggml-backend-impl.h: `ggml_backend_buffer_type_i`)."""
_DONT_NEED, _NO_HUGE_PAGES = 4, 15  # madvise(2)
_lock = threading.RLock()


@dataclass(frozen=True, slots=True)
class Buffer:
    """A plain buffer that llama.cpp allocated: its size in bytes, and the number of log lines before it."""

    address: int
    size: int
    logged: int


@contextmanager
def allocations(log: Sequence[str]) -> Iterator[list[Buffer]]:
    """Collect the plain buffers that llama.cpp allocates on this thread within the block, including those
    freed in it.
    """
    made: list[Buffer] = []
    if sys.platform != "linux":
        yield made
        return
    with _lock:
        kind = lib.ggml_backend_cpu_buffer_type()
        slots = ctypes.cast(kind, ctypes.POINTER(ctypes.c_void_p))
        original = slots[_ALLOCATE]
        allocate, mine = _Allocate(original or 0), threading.get_ident()

        def listening(of: int, size: int) -> int | None:
            buffer: int | None = allocate(of, size)
            if buffer and threading.get_ident() == mine:
                base = lib.ggml_backend_buffer_get_base(buffer)
                made.append(Buffer(base, size, len(log)))
            return buffer

        listener = _Allocate(listening)
        slots[_ALLOCATE] = ctypes.cast(listener, ctypes.c_void_p).value
        try:
            yield made
        finally:
            slots[_ALLOCATE] = original


def give_back(made: Sequence[Buffer], log: Sequence[str]) -> int:
    """Return the pages of KV cells to the system; returns the number of bytes. Only for a context that has
    just been created.
    """
    cells = [buffer for buffer in made if _holds_cells(buffer, log)]
    return sum(map(_empty, cells))


def _holds_cells(buffer: Buffer, log: Sequence[str]) -> bool:
    """Whether the log says in the next line that this buffer has the KV cells."""
    line = log[buffer.logged] if buffer.logged < len(log) else ""
    return f"KV buffer size = {buffer.size / (1 << 20):8.2f} MiB" in line


def _empty(buffer: Buffer) -> int:
    """Drop the content of its pages: they are zeros, and will be again."""
    page = mmap.PAGESIZE
    first, end = -(-buffer.address // page) * page, (buffer.address + buffer.size) // page * page
    if end <= first:
        return 0
    # With huge pages the first cell would take the memory of thousands.
    _madvise()(first, end - first, _NO_HUGE_PAGES)
    if _madvise()(first, end - first, _DONT_NEED) != 0:
        logger.debug("The pages of KV cells cannot be returned to the system")
        return 0
    return end - first


@cache
def _madvise() -> Any:
    function = ctypes.CDLL(None).madvise
    function.restype, function.argtypes = ctypes.c_int, (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    return function
