"""Which of torch's attention kernels a forward may take on a GPU."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from threading import Lock
from typing import Any

import torch


def attention_kernels(device: Any) -> AbstractContextManager[None]:
    """While it is entered, torch's attention takes no kernels on CUDA but the memory-efficient one and, where
    that cannot be used, products written out.

    cuDNN's makes a plan for each number of rows and cells: 37 ms on an H100 for every new one, so that a
    token took 55 ms in place of 10. And without it one row alone went to another kernel than
    several: the memory-efficient one, always with a mask, gave a row the same bits alone and among 63.
    """
    return _restricted if device.type == "cuda" else nullcontext()


class _Restricted(AbstractContextManager[None]):
    """torch's switches are the process's: the first forward that runs sets them and the last puts them back,
    as two models may compute at once.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._running = 0
        self._before: list[bool] = []

    def __enter__(self) -> None:
        with self._lock:
            self._running += 1
            if self._running == 1:
                self._before = [enabled() for enabled, _ in _SWITCHES]
                for (_, enable), wanted in zip(_SWITCHES, (False, False, True, True), strict=True):
                    enable(wanted)

    def __exit__(self, *exception: object) -> None:
        with self._lock:
            self._running -= 1
            if not self._running:
                for (_, enable), before in zip(_SWITCHES, self._before, strict=True):
                    enable(before)


_CUDA = torch.backends.cuda
_SWITCHES: tuple[tuple[Callable[[], bool], Callable[[bool], None]], ...] = (
    (_CUDA.cudnn_sdp_enabled, _CUDA.enable_cudnn_sdp),
    (_CUDA.flash_sdp_enabled, _CUDA.enable_flash_sdp),
    (_CUDA.mem_efficient_sdp_enabled, _CUDA.enable_mem_efficient_sdp),
    (_CUDA.math_sdp_enabled, _CUDA.enable_math_sdp),
)
_restricted = _Restricted()
