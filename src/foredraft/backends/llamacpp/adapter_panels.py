"""LoRA matrices for Foredraft's kernels.

llama.cpp computes one row by a matrix in plain memory with other kernels than several, so that their bits
differ: with an adapter no draft could be verified exactly. Our kernels compute every row alike. They have
panels for F16 matrices whose sides are multiples of a panel. So an adapter is rewritten in memory: in F16,
its rank filled up with zeros, and its constant factor multiplied into B. And llama.cpp, which places LoRA
matrices beside those that they belong to, except where these lie in a special kind of buffer, is not told
that ours is one.
"""

from __future__ import annotations

import math
import os
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from foredraft.backends.llamacpp import binding, kernels
from foredraft.backends.llamacpp.adapter_file import AdapterFile, sides
from foredraft.backends.llamacpp.gguf_native import Tensor

Matrix: TypeAlias = npt.NDArray[np.float32]

_LANES = 16
_ALIGNED = 32
_TEXT, _FLOAT, _F16 = 8, 6, 1  # gguf.h, ggml.h
_LARGEST = float(np.finfo(np.float16).max)


@contextmanager
def rewritten(adapter: AdapterFile) -> Iterator[str | None]:
    """The path of the adapter as the kernels need it, while this is entered; None where it cannot be: without
    kernels, with quantised matrices, or numbers that are too large.
    """
    panels = kernels.in_use()
    if panels is None or not hasattr(os, "memfd_create"):
        yield None
        return
    multiple = math.lcm(panels.native.handle.foredraft_panel(), _LANES)
    content = _content(adapter, multiple)
    if content is None:
        yield None
        return
    file = os.memfd_create("adapter")
    try:
        with open(file, "wb", closefd=False) as out:
            out.writelines(content)
        with _hidden(panels):
            yield f"/proc/self/fd/{file}"
    finally:
        os.close(file)


@contextmanager
def _hidden(panels: kernels.Kernels) -> Iterator[None]:
    """While this is entered, llama.cpp does not know that our buffers are special. A model that another
    thread loads comes to lie in plain memory.
    """
    with binding.LOCK:
        panels.native.handle.foredraft_hide(1)
        try:
            yield
        finally:
            panels.native.handle.foredraft_hide(0)


def _content(adapter: AdapterFile, multiple: int) -> list[bytes] | None:
    """The file's content; None if the kernels cannot compute with it."""
    parts: list[tuple[str, npt.NDArray[np.float16]]] = []
    for name, (a, b) in adapter.pairs.items():
        first, second = _numbers(a), _numbers(b)
        if first is None or second is None:
            return None
        rank = sides(b)[0]
        if adapter.alpha:
            second = second * np.float32(adapter.alpha / rank)
        more = -rank % multiple
        first = np.pad(first, [*[(0, 0)] * (first.ndim - 2), (0, more), (0, 0)])
        second = np.pad(second, [*[(0, 0)] * (second.ndim - 1), (0, more)])
        if max(np.abs(first).max(), np.abs(second).max()) > _LARGEST:
            return None
        parts += [(f"{name}.lora_a", first.astype(np.float16)), (f"{name}.lora_b", second.astype(np.float16))]
    return _written(adapter.summary.architecture, parts)


def _numbers(tensor: Tensor) -> Matrix | None:
    """A tensor's numbers, outermost first; None if they are quantised, or not finite."""
    kinds: dict[str, npt.DTypeLike] = {"f32": "<f4", "f16": "<f2", "bf16": "<u2"}
    if tensor.type not in kinds:
        return None
    with tensor.path.open("rb") as file:
        file.seek(tensor.offset)
        raw = np.frombuffer(file.read(tensor.size_bytes), kinds[tensor.type])
    if tensor.type == "bf16":
        numbers = (raw.astype(np.uint32) << 16).view(np.float32)
    else:
        numbers = raw.astype(np.float32)
    shape = tensor.shape if len(tensor.shape) > 1 else (*tensor.shape, 1)
    return numbers.reshape(shape[::-1]) if np.isfinite(numbers).all() else None


def _written(architecture: str, tensors: Sequence[tuple[str, npt.NDArray[np.float16]]]) -> list[bytes]:
    """A GGUF file, in pieces."""
    texts = (("general.type", "adapter"), ("general.architecture", architecture), ("adapter.type", "lora"))
    head = bytearray(b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(texts) + 1))
    for key, text in texts:
        head += _text(key) + struct.pack("<I", _TEXT) + _text(text)
    head += _text("adapter.lora.alpha") + struct.pack("<If", _FLOAT, 0.0)
    at = 0
    for name, values in tensors:
        shape = values.shape[::-1]
        head += _text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, _F16, at)
        at += values.nbytes + -values.nbytes % _ALIGNED
    pieces = [bytes(head), bytes(-len(head) % _ALIGNED)]
    for _, values in tensors:
        pieces += [values.tobytes(), bytes(-values.nbytes % _ALIGNED)]
    return pieces


def _text(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data
