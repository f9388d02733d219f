"""The devices that llama.cpp knows, and which of them hold a model's weights."""

from __future__ import annotations

import ctypes

import pytest

from foredraft.backends.llamacpp import devices
from foredraft.backends.llamacpp.binding import lib
from foredraft.backends.llamacpp.devices import Device

CPU, GPU, IGPU, ACCEL, META = range(5)


def have(monkeypatch: pytest.MonkeyPatch, *having: tuple[int, bytes, bytes]) -> None:
    """The devices of this process: (ggml_backend_dev_type, name, description) of each."""

    def memory(device: int, free: object, total: object) -> None:
        ctypes.cast(total, ctypes.POINTER(ctypes.c_size_t))[0] = 8_000_000_000 + device  # type: ignore[arg-type]

    functions = {
        "count": lambda: len(having),
        "get": lambda index: index,
        "type": lambda device: having[device][0],
        "name": lambda device: having[device][1],
        "description": lambda device: having[device][2],
        "memory": memory,
    }
    for name, call in functions.items():
        monkeypatch.setattr(lib, f"ggml_backend_dev_{name}", call)


def weights_in(*buffers: str) -> list[str]:
    """What llama.cpp logs when it has loaded a model."""
    lines = [f"load_tensors: {buffer:>12} model buffer size =   100.25 MiB\n" for buffer in buffers]
    return ["load_tensors: offloaded 3/3 layers to GPU\n", *lines]


def test_those_of_this_library() -> None:
    found = devices.devices()
    assert len(found) == lib.ggml_backend_dev_count() >= 1
    assert "processor" in {device.kind for device in found}
    assert all(device.name for device in found)


def test_every_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    have(
        monkeypatch,
        (CPU, b"CPU", b"A processor"),
        (GPU, b"CUDA0", b"A GPU \xff"),
        (IGPU, b"Vulkan0", b""),
        (ACCEL, b"BLAS", b"OpenBLAS"),
        (META, b"Meta", b""),
    )
    assert devices.devices() == (
        Device("CPU", "processor", "A processor", 8_000_000_000),
        Device("CUDA0", "GPU", "A GPU \ufffd", 8_000_000_001),
        Device("Vulkan0", "GPU", "", 8_000_000_002),
        Device("BLAS", "accelerator", "OpenBLAS", 8_000_000_003),
        Device("Meta", "other", "", 8_000_000_004),
    )


GPUS = (
    (CPU, b"CPU", b"A processor"),
    (GPU, b"CUDA0", b"NVIDIA H100"),
    (GPU, b"CUDA1", b"NVIDIA L4"),
    *((GPU, f"CUDA{number}".encode(), b"NVIDIA A10") for number in range(2, 11)),
    (GPU, b"MTL0", b"Apple M4"),
    (GPU, b"RPC0", b"10.0.0.2:50052"),
    (ACCEL, b"BLAS", b"OpenBLAS"),
)


@pytest.mark.parametrize(
    ("buffers", "device"),
    [
        (("CPU_Mapped", "CPU_REPACK"), "cpu"),
        (("CPU_Mapped", "CUDA_Host"), "cpu"),
        (("CPU_Mapped", "CUDA0"), "CUDA0 NVIDIA H100"),
        (("CPU_Mapped", "CUDA1"), "CUDA1 NVIDIA L4"),
        (("CUDA10",), "CUDA10 NVIDIA A10"),
        (("CUDA0", "CPU_Mapped", "CUDA1"), "CUDA0 NVIDIA H100 + CUDA1 NVIDIA L4"),
        (("MTL0_Mapped",), "MTL0 Apple M4"),
        (("RPC0[10.0.0.2:50052]",), "RPC0 10.0.0.2:50052"),
        (("CPU_Mapped", "RPC1[10.0.0.3#2:50052]"), "RPC1[10.0.0.3:50052]"),
        (("BLAS",), "cpu"),
        ((), "cpu"),
    ],
)
def test_the_devices_that_hold_weights(
    monkeypatch: pytest.MonkeyPatch, buffers: tuple[str, ...], device: str
) -> None:
    have(monkeypatch, *GPUS)
    assert devices.placed(weights_in(*buffers)) == device


def test_buffers_that_hold_no_weights_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    have(monkeypatch, *GPUS)
    lines = [
        "llama_kv_cache:  CUDA0 KV buffer size =    90.00 MiB\n",
        "sched_reserve:  CUDA0 compute buffer size =    90.00 MiB\n",
    ]
    assert devices.placed(lines) == "cpu"


def test_an_accelerator_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    have(monkeypatch, *GPUS)
    assert devices.has_accelerator()
    have(monkeypatch, *GPUS[:-1])
    assert not devices.has_accelerator()
