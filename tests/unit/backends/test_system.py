"""What is asked of llama.cpp and the machine, and what happens where there is no answer."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

import pytest

from foredraft.backends.llamacpp import abi, binding, system
from foredraft.backends.llamacpp.binding import lib
from foredraft.backends.llamacpp.system import FLAGS, Device, llama_cpp_facts


def test_the_installed_llama_cpp() -> None:
    facts = llama_cpp_facts()
    assert abi.VERSION in facts.name
    assert facts.path == str(binding.library().path)
    assert facts.gpu_offload is bool(lib.llama_supports_gpu_offload())
    assert set(facts.features) <= set(FLAGS.values())
    printed = (lib.llama_print_system_info() or b"").decode()
    assert all(f"{name} = 1" in printed for name in facts.features)
    assert bool(facts.devices) <= facts.gpu_offload


# --- devices -------------------------------------------------------------------------------------------


def devices(monkeypatch: pytest.MonkeyPatch, kinds: list[int]) -> None:
    """One device of each kind (ggml_backend_dev_type)."""

    def memory(device: int, free: object, total: object) -> None:
        ctypes.cast(total, ctypes.POINTER(ctypes.c_size_t))[0] = 8_000_000_000 + device  # type: ignore[arg-type]

    functions = {
        "count": lambda: len(kinds),
        "get": lambda index: index,
        "type": kinds.__getitem__,
        "name": lambda device: f"dev{device}".encode(),
        "description": lambda device: b"GPU \xff",
        "memory": memory,
    }
    for name, call in functions.items():
        monkeypatch.setattr(lib, f"ggml_backend_dev_{name}", call)


def test_gpus_are_listed_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    devices(monkeypatch, [0, 1, 2, 3])
    assert list(system._gpus()) == [
        Device("dev1", "GPU \ufffd", 8_000_000_001),
        Device("dev2", "GPU \ufffd", 8_000_000_002),
    ]
    devices(monkeypatch, [])
    assert list(system._gpus()) == []


# --- the processor -------------------------------------------------------------------------------------

X86 = "model name\t: A Fast One\nflags\t\t: fpu sse avx2 fma f16c avx512f avx512_vnni\n"
ARM = "processor\t: 0\nFeatures\t: fp asimd asimddp i8mm\n"


def cpu_info(monkeypatch: pytest.MonkeyPatch, path: Path, text: str | None) -> None:
    if text is not None:
        path.write_text(text)
    monkeypatch.setattr("foredraft.cpu_info.CPU_INFO", path)


def test_linux_on_x86(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    cpu_info(monkeypatch, tmp_path / "cpuinfo", X86)
    assert system.processor_name() == "A Fast One"
    assert system.processor_features() == ("F16C", "FMA", "AVX2", "AVX512", "AVX512_VNNI")


def test_linux_on_arm(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    cpu_info(monkeypatch, tmp_path / "cpuinfo", ARM)
    assert system.processor_features() == ("NEON", "DOTPROD", "MATMUL_INT8")
    assert system.processor_name()


def test_elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    cpu_info(monkeypatch, tmp_path / "none", None)
    assert system.processor_features() is None
    assert system.processor_name()


def test_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    values = {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": 1000}
    monkeypatch.setattr(os, "sysconf", values.__getitem__, raising=False)
    assert system.memory_bytes() == 4_096_000
    monkeypatch.delattr(os, "sysconf")
    assert system.memory_bytes() == 0
