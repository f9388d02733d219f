"""A processor in place of a device with little memory, to test and observe streaming without a GPU. Copies
are real, into real buffers, by another thread.
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor, wait
from time import sleep
from typing import Any

import torch

from foredraft.backends.torch.fixed_sizes import Recorder


class CpuDevice:
    """`memory`: free memory in bytes to report. A copy takes at least `seconds_per_gb`."""

    device = torch.device("cpu")

    def __init__(self, memory: int, *, seconds_per_gb: float = 0.0) -> None:
        self._memory = memory
        self._seconds_per_byte = seconds_per_gb / 1e9

    def free(self) -> int:
        """Free memory for tensors in bytes."""
        return self._memory

    def host_bytes(self, size: int) -> Any:
        """`size` bytes of the memory from which layers are streamed."""
        return torch.empty(size, dtype=torch.uint8)

    def copier(self, size: int, count: int) -> ThreadCopier:
        """A copier with `count` buffers of `size` bytes."""
        return ThreadCopier(size, count, self._seconds_per_byte)

    def by_rows(self, dtype: Any, **shape: int) -> None:
        """None: a processor has its own exact attention."""

    def recorder(self) -> Recorder:
        """Never called, because there are no such kernels."""
        raise NotImplementedError


class ThreadCopier:
    """A `Copier` (offload_stream.py). Here a layer has been computed when the call returns."""

    def __init__(self, size: int, count: int, seconds_per_byte: float = 0.0) -> None:
        self.buffers = [torch.empty(size, dtype=torch.uint8) for _ in range(count)]
        self._seconds_per_byte = seconds_per_byte
        self._thread = ThreadPoolExecutor(1, "foredraft-copier")
        self._copies: dict[int, Future[None]] = {}

    def start(self, slot: int, source: Any) -> None:
        self._copies[slot] = self._thread.submit(self._copy, self.buffers[slot], source)

    def _copy(self, buffer: Any, source: Any) -> None:
        sleep(len(source) * self._seconds_per_byte)
        buffer[: len(source)].copy_(source)

    def wait(self, slot: int) -> None:
        self._copies[slot].result()

    def computed(self, slot: int) -> None:
        """Nothing to do."""

    def settle(self) -> None:
        wait(self._copies.values())

    def close(self) -> None:
        self._thread.shutdown()
        self.buffers.clear()
