"""The batch-invariance probe for llama.cpp, with advice if its arithmetic is not invariant."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

from foredraft.backends import probe
from foredraft.backends.llamacpp.adapters import Loaded
from foredraft.backends.llamacpp.binding import lib
from foredraft.backends.llamacpp.interruptible import interruptible
from foredraft.backends.llamacpp.model import UNTILED_ROWS
from foredraft.backends.llamacpp.repeated_cells import repeated
from foredraft.backends.llamacpp.vision import LlamaCppVision
from foredraft.backends.probe import M, Verdict
from foredraft.config import ModelOptions
from foredraft.images import PreparedImage
from foredraft.protocols import Model

_TILED_KERNELS = b"LLAMAFILE = 1"
"""In llama.cpp's build information: matrix kernels whose summation order depends on the number of rows."""

_REMEDY = "llama.cpp built with -DGGML_LLAMAFILE=OFF may be exact (documentation: exactness)"

MOST_BYTES = 1 << 29
"""Of a sequence with repeated cells, which is twice in memory."""


def probed(
    model: M,
    context: Any,
    settings_key: str,
    options: ModelOptions,
    adapters: Mapping[str, Loaded],
    *,
    vision: LlamaCppVision | None,
) -> M:
    """The model with its measured `batch_invariant`, from the cache or by probing it on its `context`, alone
    and with each of its adapters, and behind an image if it sees. Ctrl-C aborts the probe within a forward,
    with KeyboardInterrupt.
    """
    window = int(lib.llama_model_n_swa(lib.llama_get_model(context)))

    image = vision.blank() if vision is not None else None
    if image is not None:
        settings_key += "|behind an image"

    def measured() -> Verdict:
        return interruptible(context, lambda: measure(model, options, window, image))

    kinds = {"": settings_key}
    for name, adapter in adapters.items():
        kind = f"{settings_key}|adapter {adapter.signature}"
        if kind not in kinds.values():
            kinds[name] = kind
    return probe.with_adapters_measured(
        model, kinds, options, measured, otherwise=UNTILED_ROWS, window=window
    )


def measure(
    model: Model, options: ModelOptions, window: int = 0, image: PreparedImage | None = None
) -> Verdict:
    """`backends.probe.measure`, with advice about kernels that are known not to be exact."""
    verdict = probe.measure(
        model, options, enough=UNTILED_ROWS, window=window, lengthen=_lengthened, image=image
    )
    tiled = model.info.device == "cpu" and _TILED_KERNELS in _build()
    if tiled and "depends on the batch size" in verdict.note:
        return replace(verdict, note=f"{verdict.note}; {_REMEDY}")
    return verdict


def _lengthened(snapshot: object, length: int) -> object | None:
    return repeated(cast("bytearray", snapshot), length, most_bytes=MOST_BYTES)


def _build() -> bytes:
    """llama.cpp's build information."""
    return bytes(lib.llama_print_system_info() or b"")
