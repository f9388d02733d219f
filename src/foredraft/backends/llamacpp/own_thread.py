"""Forwards on a thread of their own, where others use AMX in the same process.

What AMX's tiles look like is a state of each thread. llama.cpp sets it once for a thread and takes it for
granted from then on; PyTorch sets another, or none, whenever it multiplies in bf16. On a thread that serves
both, llama.cpp's next forward ends the program or computes nonsense. Threads that OpenMP adds belong to the
one that began, so one thread for each model keeps all of them apart.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from foredraft.backends.llamacpp import amx
from foredraft.backends.llamacpp.interruptible import join

T = TypeVar("T")

OTHERS = ("torch", "jax", "onnxruntime", "openvino", "tensorflow")
"""Packages that multiply with AMX on the threads that call them."""


def needed() -> bool:
    """Whether tiles may be set by others: llama.cpp uses AMX, and one of `OTHERS` was imported by now."""
    return amx.in_use() and any(name in sys.modules for name in OTHERS)


def apart(work: Callable[[], T]) -> T:
    """What `work` returns or raises, from a thread of its own where that is `needed`."""
    thread = OwnThread()
    try:
        return thread.run(work)
    finally:
        thread.close()


class OwnThread:
    """The thread of one model. It begins when it is first needed."""

    def __init__(self) -> None:
        self._threads: ThreadPoolExecutor | None = None

    def run(self, work: Callable[[], T]) -> T:
        """What `work` returns or raises. Ctrl-C comes through when `work` has ended."""
        if self._threads is None:
            if not needed():
                return work()
            self._threads = ThreadPoolExecutor(1, "foredraft-llama.cpp")
            self._threads.submit(int).result()  # from now on the pool knows the thread, and waits for its end
        try:
            return self._threads.submit(work).result()
        except KeyboardInterrupt:
            self.close()
            raise

    def close(self) -> None:
        """Wait for the end of what runs, and of the thread. The next `run` begins another."""
        if self._threads is not None:
            join(self._threads)
            self._threads = None
