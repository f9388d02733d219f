"""What is asked of llama.cpp and the machine, and what happens where there is no answer."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import llama_cpp
import pytest

from foredraft.backends.llamacpp import system
from foredraft.backends.llamacpp.system import FLAGS, Device, llama_cpp_facts
from foredraft.errors import BackendError, MissingDependencyError
from foredraft.installation import add_extra


def test_the_installed_llama_cpp() -> None:
    facts = llama_cpp_facts()
    assert facts.version == llama_cpp.__version__
    assert facts.gpu_offload is bool(llama_cpp.llama_supports_gpu_offload())
    assert set(facts.features) <= set(FLAGS.values())
    printed = llama_cpp.llama_print_system_info().decode()
    assert all(f"{name} = 1" in printed for name in facts.features)
    assert bool(facts.devices) <= facts.gpu_offload


def test_without_llama_cpp(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llama_cpp", None)
    with pytest.raises(MissingDependencyError) as caught:
        llama_cpp_facts()
    assert caught.value.hint == f"Install it with: {add_extra('llamacpp')}"


class Unloadable:
    """A package whose native library is missing or of another machine."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name == "llama_cpp":
            raise self._error


@pytest.mark.parametrize(
    "error",
    [RuntimeError("no shared library"), OSError("invalid ELF header"), ImportError("undefined symbol")],
)
def test_a_llama_cpp_that_does_not_load(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    monkeypatch.delitem(sys.modules, "llama_cpp")
    monkeypatch.setattr(sys, "meta_path", [Unloadable(error), *sys.meta_path])
    with pytest.raises(BackendError, match=str(error)) as caught:
        llama_cpp_facts()
    assert caught.value.hint is not None
    assert "pip install --force-reinstall" in caught.value.hint


# --- devices -------------------------------------------------------------------------------------------


class Function:
    """A ctypes function: it can be called and given a signature."""

    def __init__(self, call: Any) -> None:
        self._call = call

    def __call__(self, *arguments: Any) -> Any:
        return self._call(*arguments)


def ggml(kinds: list[int]) -> Any:
    """A library with one device of each kind (ggml_backend_dev_type)."""

    def memory(device: int, free: Any, total: Any) -> None:
        free._obj.value, total._obj.value = 1, 8_000_000_000 + device

    functions = {
        "count": lambda: len(kinds),
        "get": lambda index: index,
        "type": kinds.__getitem__,
        "name": lambda device: f"dev{device}".encode(),
        "description": lambda device: b"GPU \xff",
        "memory": memory,
    }
    return SimpleNamespace(**{f"ggml_backend_dev_{name}": Function(call) for name, call in functions.items()})


def test_gpus_are_listed_and_nothing_else() -> None:
    found = system._devices(ggml([0, 1, 2, 3]))
    assert found == (Device("dev1", "GPU \ufffd", 8_000_000_001), Device("dev2", "GPU \ufffd", 8_000_000_002))
    assert system._devices(ggml([])) == ()


def test_a_library_that_cannot_be_asked() -> None:
    assert system._devices(SimpleNamespace()) == ()


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
