"""Restricts the attention kernels that torch may choose on a GPU."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from threading import Lock
from typing import Any

import torch


def attention_kernels(device: Any) -> AbstractContextManager[None]:
    """While entered, torch's attention on CUDA only uses the memory-efficient kernel and, if that is not
    applicable, explicit products.

    cuDNN's kernel creates a plan for each number of rows and cells: 37 ms on an H100 for every new one, so
    that a token took 55 ms instead of 10. And without it a single row used another kernel than several rows:
    the memory-efficient one, always with a mask, gave a row the same bits alone and among 63.
    """
    return _restricted if device.type == "cuda" else nullcontext()


class _Restricted(AbstractContextManager[None]):
    """torch's switches are global: the first running forward sets them and the last one restores them, since
    two models may compute at once.
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
