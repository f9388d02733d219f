"""Copies layers to a CUDA device on a separate stream, from pinned memory, while others are computed.

Two events for each buffer keep the order: computation waits for the copy that `start` began, and the next
copy for the computation that used the buffer. The processor waits for neither.
"""

from __future__ import annotations

import logging
import weakref
from contextlib import suppress
from mmap import PAGESIZE
from typing import Any

import torch

from foredraft.backends.torch.by_rows import find_row_kernels
from foredraft.backends.torch.cuda_graphs import CudaRecorder
from foredraft.backends.torch.fixed_sizes import Recorder
from foredraft.backends.torch.lean import Kernels

logger = logging.getLogger(__name__)

RESERVE = 512 << 20
"""Bytes reserved for CUDA's libraries: kernels, which are loaded when first called, workspaces of cuBLAS, and
rounding by the allocator.
"""


class CudaDevice:
    """The current CUDA device."""

    device = torch.device("cuda")

    def free(self) -> int:
        """Free memory for tensors in bytes: the driver's, and torch's cached memory."""
        free, _ = torch.cuda.mem_get_info(self.device)
        kept = torch.cuda.memory_reserved(self.device) - torch.cuda.memory_allocated(self.device)
        return max(0, int(free + kept) - RESERVE)

    def host_bytes(self, size: int) -> Any:
        """`size` bytes of CPU memory, pinned if the system allows it.

        Not by torch's allocator of pinned memory, which rounds up to a power of two. In whole pages, because
        no page can be pinned twice.
        """
        pages = -(-size // PAGESIZE) * PAGESIZE
        memory = torch.empty(pages + PAGESIZE, dtype=torch.uint8)
        start = -memory.data_ptr() % PAGESIZE
        memory = memory[start : start + size]
        code = int(torch.cuda.cudart().cudaHostRegister(memory.data_ptr(), pages, 1))
        if code == 0:
            weakref.finalize(memory, _unpin, memory.data_ptr()).atexit = False
        else:
            logger.warning("CPU memory cannot be pinned (CUDA error %d): copies will be slow.", code)
            self._forget_error()
        return memory

    def _forget_error(self) -> None:
        """Clear the error of a failed call, which CUDA would otherwise report for the next kernel."""
        with suppress(RuntimeError):
            torch.ones(1, device=self.device).add_(1)

    def copier(self, size: int, count: int) -> CudaCopier:
        """A copier with `count` buffers of `size` bytes."""
        return CudaCopier(self.device, size, count)

    def by_rows(self, dtype: Any, **shape: int) -> Kernels | None:
        """Triton's kernels, if Triton works."""
        return find_row_kernels(self.device, dtype, **shape)

    def recorder(self) -> Recorder:
        """A recorder with CUDA graphs."""
        return CudaRecorder()


def _unpin(pointer: int) -> None:
    torch.cuda.cudart().cudaHostUnregister(pointer)


class CudaCopier:
    """A `Copier` (offload_stream.py). Computation is on the caller's current stream."""

    def __init__(self, device: Any, size: int, count: int) -> None:
        self._device = device
        self.buffers = [torch.empty(size, dtype=torch.uint8, device=device) for _ in range(count)]
        self._stream = torch.cuda.Stream(device)
        self._arrived = [torch.cuda.Event() for _ in range(count)]
        self._computed = [torch.cuda.Event() for _ in range(count)]
        for slot in range(count):  # earlier computations may still use the buffers' memory
            self.computed(slot)

    def start(self, slot: int, source: Any) -> None:
        self._stream.wait_event(self._computed[slot])
        with torch.cuda.stream(self._stream):
            self.buffers[slot][: len(source)].copy_(source, non_blocking=True)
        self._arrived[slot].record(self._stream)

    def wait(self, slot: int) -> None:
        torch.cuda.current_stream(self._device).wait_event(self._arrived[slot])

    def computed(self, slot: int) -> None:
        self._computed[slot].record(torch.cuda.current_stream(self._device))

    def settle(self) -> None:
        torch.cuda.current_stream(self._device).synchronize()
        self._stream.synchronize()

    def close(self) -> None:
        self.settle()
        self.buffers.clear()
