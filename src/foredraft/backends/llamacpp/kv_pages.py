"""KV cells that hold nothing take no memory.

llama.cpp allocates a cell for every token of every sequence's context and writes zeros to all of them: 720 MB
for four sequences of 8,192 tokens of a 135M model, of which a chat uses ten. Once a context is made, the
pages of its cells are given back to the system, which gives them out again, as zeros, where a cell is written
to. Cells are used from the beginning of each sequence on, so that what was never needed is never taken.

Where the cells lie llama.cpp does not say. Its allocations of plain buffers pass through a function here
while a context is made, and its log names the one that cells are in. Where either is otherwise (another
version, a GPU, not Linux) nothing is given back.
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

import llama_cpp._ggml as ggml

logger = logging.getLogger(__name__)

_Allocate = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
_ALLOCATE = 1
"""Its place among the functions of a type of buffers (ggml-backend-impl.h: `ggml_backend_buffer_type_i`)."""
_DONT_NEED, _NO_HUGE_PAGES = 4, 15  # madvise(2)
_lock = threading.RLock()


@dataclass(frozen=True, slots=True)
class Buffer:
    """Plain memory that llama.cpp allocated: so many bytes, after so many lines of its log."""

    address: int
    size: int
    logged: int


@contextmanager
def allocations(log: Sequence[str]) -> Iterator[list[Buffer]]:
    """Collect the plain buffers that this thread has llama.cpp allocate in the block. Those that were freed
    in it are there, too.
    """
    made: list[Buffer] = []
    if sys.platform != "linux":
        yield made
        return
    with _lock:
        kind = _function("ggml_backend_cpu_buffer_type", ctypes.c_void_p)()
        slots = ctypes.cast(kind, ctypes.POINTER(ctypes.c_void_p))
        original = slots[_ALLOCATE]
        allocate, mine = _Allocate(original or 0), threading.get_ident()

        def listening(of: int, size: int) -> int | None:
            buffer: int | None = allocate(of, size)
            if buffer and threading.get_ident() == mine:
                base = _function("ggml_backend_buffer_get_base", ctypes.c_void_p, ctypes.c_void_p)(buffer)
                made.append(Buffer(base, size, len(log)))
            return buffer

        listener = _Allocate(listening)
        slots[_ALLOCATE] = ctypes.cast(listener, ctypes.c_void_p).value
        try:
            yield made
        finally:
            slots[_ALLOCATE] = original


def give_back(made: Sequence[Buffer], log: Sequence[str]) -> int:
    """Give the pages of KV cells back that nothing was written to. Only for a context that was just made.
    Returns how many bytes.
    """
    cells = [buffer for buffer in made if _holds_cells(buffer, log)]
    return sum(map(_empty, cells))


def _holds_cells(buffer: Buffer, log: Sequence[str]) -> bool:
    """Whether it is the buffer that the next line of the log says cells are in."""
    line = log[buffer.logged] if buffer.logged < len(log) else ""
    return f"KV buffer size = {buffer.size / (1 << 20):8.2f} MiB" in line


def _empty(buffer: Buffer) -> int:
    """Drop what its pages hold: they are zeros, and will be again."""
    page = mmap.PAGESIZE
    first, end = -(-buffer.address // page) * page, (buffer.address + buffer.size) // page * page
    if end <= first:
        return 0
    # A huge page would bring thousands of cells along with the first one.
    _madvise()(first, end - first, _NO_HUGE_PAGES)
    if _madvise()(first, end - first, _DONT_NEED) != 0:
        logger.debug("The system does not take the pages of KV cells back")
        return 0
    return end - first


@cache
def _madvise() -> Any:
    function = ctypes.CDLL(None).madvise
    function.restype, function.argtypes = ctypes.c_int, (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    return function


@cache
def _function(name: str, result: Any, *arguments: Any) -> Any:
    address = ctypes.cast(getattr(ggml.libggml, name), ctypes.c_void_p).value
    return ctypes.CFUNCTYPE(result, *arguments)(address or 0)
