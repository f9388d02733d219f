"""Runs forwards on a separate thread if other libraries use AMX in the same process.

The configuration of AMX's tiles is a state of each thread. llama.cpp sets it once per thread and relies on it
from then on; PyTorch sets another, or none, whenever it multiplies in bf16. On a thread that both use,
llama.cpp's next forward ends the program or computes wrong values. OpenMP's worker threads belong to the
thread that started them, so one thread per model keeps all of them apart.
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
    """Whether others may configure the tiles: llama.cpp uses AMX, and one of `OTHERS` is imported."""
    return amx.in_use() and any(name in sys.modules for name in OTHERS)


def apart(work: Callable[[], T]) -> T:
    """Run `work`, on a separate thread if `needed`, and return its result."""
    thread = OwnThread()
    try:
        return thread.run(work)
    finally:
        thread.close()


class OwnThread:
    """The thread of one model, started on first use."""

    def __init__(self) -> None:
        self._threads: ThreadPoolExecutor | None = None

    def run(self, work: Callable[[], T]) -> T:
        """Run `work` and return its result. Ctrl-C is raised when `work` has ended."""
        if self._threads is None:
            if not needed():
                return work()
            self._threads = ThreadPoolExecutor(1, "foredraft-llama.cpp")
            self._threads.submit(
                int
            ).result()  # registers the thread with the pool, so that it waits for its end
        try:
            return self._threads.submit(work).result()
        except KeyboardInterrupt:
            self.close()
            raise

    def close(self) -> None:
        """Wait for running work and end the thread. The next `run` starts another."""
        if self._threads is not None:
            join(self._threads)
            self._threads = None
