"""The devices that the loaded library can compute on, and those that hold a model's weights."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Iterable
from dataclasses import dataclass

from foredraft.backends.llamacpp import abi
from foredraft.backends.llamacpp.binding import lib

CPU = "cpu"
"""`ModelInfo.device` of a model whose weights are all in the processor's memory."""

GPU = "GPU"
ACCELERATOR = "accelerator"

KINDS = {
    abi.GGML_BACKEND_DEVICE_TYPE_CPU: "processor",
    abi.GGML_BACKEND_DEVICE_TYPE_GPU: GPU,
    abi.GGML_BACKEND_DEVICE_TYPE_IGPU: GPU,
    abi.GGML_BACKEND_DEVICE_TYPE_ACCEL: ACCELERATOR,
}

_WEIGHTS = re.compile(r"(\S+) +model buffer size = +[\d.]+ MiB")
_REMOTE = re.compile(r"(RPC\d+\[[^#]+)(?:#\d+)?(:\d+\])")
"""With the number of the connection, which is left out where it is said (`rpc.library`)."""


@dataclass(frozen=True, slots=True)
class Device:
    """A device, by ggml's name for it. `kind`: a value of `KINDS`. `memory_bytes`: its whole memory, or 0."""

    name: str
    kind: str
    description: str
    memory_bytes: int


def devices() -> tuple[Device, ...]:
    """All devices, in ggml's order."""
    return tuple(map(_described, map(lib.ggml_backend_dev_get, range(lib.ggml_backend_dev_count()))))


def has_accelerator() -> bool:
    """Whether ggml has a device beside the processor that computes in its memory, such as BLAS."""
    return any(device.kind == ACCELERATOR for device in devices())


def placed(lines: Iterable[str]) -> str:
    """The GPUs and devices of RPC hosts that hold weights, as `ModelInfo.device`: "CUDA0 NVIDIA H100" or
    "RPC0[10.0.0.2:50052]", several joined by " + "; else `CPU`. `lines`: llama.cpp's log of loading them.
    """
    buffers = {found[1] for line in lines if (found := _WEIGHTS.search(line))}
    own = [device for device in devices() if device.kind == GPU]
    others = [it for it in buffers if not any(_is_of(it, device) for device in own)]
    held = sorted(found[1] + found[2] for it in others if (found := _REMOTE.fullmatch(it)))
    held += [
        f"{device.name} {device.description}".strip()
        for device in own
        if any(_is_of(buffer, device) for buffer in buffers)
    ]
    return " + ".join(held) or CPU


def gpu_pointers() -> list[int]:
    """The pointers of this machine's GPUs."""
    pointers = map(lib.ggml_backend_dev_get, range(lib.ggml_backend_dev_count()))
    return [it for it in pointers if lib.ggml_backend_dev_type(it) == abi.GGML_BACKEND_DEVICE_TYPE_GPU]


def _is_of(buffer: str, device: Device) -> bool:
    """Whether a buffer is in a device's memory: it has its name, and perhaps an addition (MTL0_Mapped)."""
    return re.match(re.escape(device.name) + r"(?![A-Za-z0-9])(?!_Host)", buffer) is not None


def _described(device: object) -> Device:
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    lib.ggml_backend_dev_memory(device, ctypes.byref(free), ctypes.byref(total))
    return Device(
        name=_text(lib.ggml_backend_dev_name(device)),
        kind=KINDS.get(lib.ggml_backend_dev_type(device), "other"),
        description=_text(lib.ggml_backend_dev_description(device)),
        memory_bytes=total.value,
    )


def _text(data: bytes | None) -> str:
    return (data or b"").decode("utf-8", "replace")
