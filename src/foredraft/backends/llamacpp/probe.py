"""The batch-invariance probe for llama.cpp, with advice if its arithmetic is not invariant."""

from __future__ import annotations

from typing import Any

from foredraft.backends import probe
from foredraft.backends.llamacpp.binding import lib
from foredraft.backends.llamacpp.interruptible import interruptible
from foredraft.backends.llamacpp.model import UNTILED_ROWS
from foredraft.backends.probe import ROWS, M
from foredraft.config import ModelOptions
from foredraft.protocols import Model

__all__ = ["ROWS", "measure", "probed"]

_TILED_KERNELS = b"LLAMAFILE = 1"
"""In llama.cpp's build information: matrix kernels whose summation order depends on the number of rows."""

_REMEDY = "llama.cpp built with -DGGML_LLAMAFILE=OFF may be exact (docs/exactness.md)"


def probed(model: M, context: Any, settings_key: str, options: ModelOptions) -> M:
    """The model with its measured `batch_invariant`, from the cache or by probing it on its `context`. Ctrl-C
    aborts the probe within a forward, with KeyboardInterrupt.
    """

    def measured() -> tuple[int, str]:
        return interruptible(context, lambda: measure(model))

    return probe.with_measured(model, settings_key, options, measured, otherwise=UNTILED_ROWS)


def measure(model: Model) -> tuple[int, str]:
    """`backends.probe.measure`, with advice about kernels that are known not to be exact."""
    rows, note = probe.measure(model, enough=UNTILED_ROWS)
    if rows == 1 and "depends on the batch size" in note and _TILED_KERNELS in _build():
        return rows, f"{note}; {_REMEDY}"
    return rows, note


def _build() -> bytes:
    """llama.cpp's build information."""
    return bytes(lib.llama_print_system_info() or b"")
