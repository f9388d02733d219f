"""A processor in the place of a device with little memory: to test how layers are streamed, and to watch it,
without a GPU. Copies are real, into real buffers, by a thread beside the one that computes.
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor, wait
from time import sleep
from typing import Any

import torch

from foredraft.backends.torch.fixed_sizes import Recorder


class CpuDevice:
    """`memory`: bytes that it claims to have free. A copy takes `seconds_per_gb` at least."""

    device = torch.device("cpu")

    def __init__(self, memory: int, *, seconds_per_gb: float = 0.0) -> None:
        self._memory = memory
        self._seconds_per_byte = seconds_per_gb / 1e9

    def free(self) -> int:
        """Bytes that tensors may take."""
        return self._memory

    def host_bytes(self, size: int) -> Any:
        """`size` bytes of the memory that layers are streamed from."""
        return torch.empty(size, dtype=torch.uint8)

    def copier(self, size: int, count: int) -> ThreadCopier:
        """With `count` buffers of `size` bytes."""
        return ThreadCopier(size, count, self._seconds_per_byte)

    def by_rows(self, dtype: Any, **shape: int) -> None:
        """A processor has attention of its own that is exact."""

    def recorder(self) -> Recorder:
        """Not asked for without it."""
        raise NotImplementedError


class ThreadCopier:
    """A `Copier` (offload_stream.py). Here a layer is computed when the call that computes it returns."""

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
        """Nothing to remember."""

    def settle(self) -> None:
        wait(self._copies.values())

    def close(self) -> None:
        self._thread.shutdown()
        self.buffers.clear()
