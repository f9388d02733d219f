"""What is asked of llama.cpp and the machine, and what happens where there is no answer."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from foredraft.backends.llamacpp import abi, binding, devices, system
from foredraft.backends.llamacpp.binding import lib
from foredraft.backends.llamacpp.system import FLAGS, llama_cpp_facts


def test_the_installed_llama_cpp() -> None:
    facts = llama_cpp_facts()
    assert abi.VERSION in facts.name
    assert facts.path == str(binding.library().path)
    assert not facts.chosen
    assert facts.devices == devices.devices()
    assert facts.gpu_offload is any(device.kind == "GPU" for device in facts.devices)
    assert set(facts.features) <= set(FLAGS.values())
    printed = (lib.llama_print_system_info() or b"").decode()
    assert all(f"{name} = 1" in printed for name in facts.features)


def test_devices_that_do_not_load_are_named_with_the_reason(tmp_path: Path) -> None:
    library = tmp_path / "libllama.so"
    (tmp_path / "libggml-cuda.so").write_text("no library")
    (reason,) = system._unloaded(library)
    assert reason.startswith("libggml-cuda.so: ")
    assert list(system._unloaded(binding.library().path)) == []


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
