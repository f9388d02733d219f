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
_Clear = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_uint8)
_LARGE = 1 << 20
_FUNCTIONS = 11
"""Functions of a buffer among which `clear` is looked for."""

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
                if size >= _LARGE and (place := _place_of_clear(allocate)) is not None:
                    slots_of(buffer)[place] = ctypes.cast(_cleared, ctypes.c_void_p).value
            return buffer

        listener = _Allocate(listening)
        slots[_ALLOCATE] = ctypes.cast(listener, ctypes.c_void_p).value
        try:
            yield made
        finally:
            slots[_ALLOCATE] = original


def slots_of(buffer: int) -> Any:
    """The functions of a buffer (ggml-backend-impl.h: `ggml_backend_buffer_i`), which it begins with."""
    return ctypes.cast(ctypes.c_void_p(buffer), ctypes.POINTER(ctypes.c_void_p))


_clears: dict[int, Any] = {}
"""The place of `clear` among a buffer's functions, and that of plain buffers."""


def _place_of_clear(allocate: Any) -> int | None:
    """Where a buffer has its function `clear`, which is looked for once; None if it is not found."""
    if not _clears:
        buffer = allocate(lib.ggml_backend_cpu_buffer_type(), mmap.PAGESIZE)
        slots, called = slots_of(buffer), list[int]()
        listener = _Clear(lambda _buffer, value: called.append(value))
        for place in range(_FUNCTIONS):
            original = slots[place]
            slots[place] = ctypes.cast(listener, ctypes.c_void_p).value
            lib.ggml_backend_buffer_clear(buffer, 7)
            slots[place] = original
            if called:
                _clears[place] = _Clear(original or 0)
                break
        lib.ggml_backend_buffer_free(buffer)
    return next(iter(_clears), None)


def _clear(buffer: int, value: int) -> None:
    """Clear a buffer as llama.cpp does, but without touching memory that then would be zeros."""
    [(place, original)] = _clears.items()
    slots_of(buffer)[place] = ctypes.cast(original, ctypes.c_void_p).value
    base, size = lib.ggml_backend_buffer_get_base(buffer), lib.ggml_backend_buffer_get_size(buffer)
    first, end = _pages(base, size)
    if value != 0 or _empty(Buffer(base, size, 0)) == 0:
        original(buffer, value)
        return
    ctypes.memset(base, 0, first - base)
    ctypes.memset(end, 0, base + size - end)


_cleared = _Clear(_clear)


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
    first, end = _pages(buffer.address, buffer.size)
    if end <= first:
        return 0
    # With huge pages the first cell would take the memory of thousands.
    _madvise()(first, end - first, _NO_HUGE_PAGES)
    if _madvise()(first, end - first, _DONT_NEED) != 0:
        logger.debug("The pages of KV cells cannot be returned to the system")
        return 0
    return end - first


def _pages(address: int, size: int) -> tuple[int, int]:
    """The beginning and the end of the whole pages in a piece of memory."""
    page = mmap.PAGESIZE
    return -(-address // page) * page, (address + size) // page * page


@cache
def _madvise() -> Any:
    function = ctypes.CDLL(None).madvise
    function.restype, function.argtypes = ctypes.c_int, (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    return function
