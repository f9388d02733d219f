"""Our native libraries of an earlier version: what is said is that they are outdated, not what they lack."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from foredraft.backends.llamacpp import kernels
from foredraft.backends.llamacpp.kernels import LeftOutError, NativeLibrary
from foredraft.backends.llamacpp.native import build, rpc_build
from foredraft.backends.llamacpp.rpc.library import library
from foredraft.errors import BackendError

NAMED = 'const char * {}(void) {{ return "0123456789abcdef"; }}'
NEEDING = "void ggml_gone(void); void foredraft_call(void) { ggml_gone(); }"
"""Cannot be loaded: llama.cpp does not have this function any more."""


def made(path: Path, source: str) -> Path:
    """A library of this C code."""
    compiler = shutil.which("c++") or pytest.skip("there is no compiler")
    path.parent.mkdir(parents=True, exist_ok=True)
    command = [compiler, "-shared", "-fPIC", "-x", "c", "-o", str(path), "-"]
    subprocess.run(command, input=source, text=True, check=True)
    return path


@pytest.mark.parametrize("source", [NAMED.format("foredraft_sources"), "int other = 1;"])
def test_outdated_kernels(source: str, tmp_path: Path) -> None:
    path = made(tmp_path / build.library_name("avx2"), source)
    with pytest.raises(LeftOutError, match=r"compiled from other sources: run .*build\.py"):
        kernels.library_of("avx2", tmp_path)
    with pytest.raises(LeftOutError, match="compiled from other sources"):
        NativeLibrary(path)


@pytest.mark.parametrize(
    "source",
    [NAMED.format("foredraft_rpc_sources"), NAMED.format("foredraft_rpc_sources") + NEEDING, NEEDING],
)
def test_an_outdated_rpc_library(source: str, tmp_path: Path) -> None:
    with pytest.raises(BackendError, match="compiled for another version") as caught:
        library(None, made(tmp_path / rpc_build.FILE, source).parent)
    assert "foredraft rpc-build" in (caught.value.hint or "")


def test_an_rpc_library_that_cannot_be_loaded(tmp_path: Path) -> None:
    """Of these sources, and damaged."""
    path = tmp_path / rpc_build.FILE
    path.write_bytes(b"\x7fELF" + rpc_build.sources_hash().encode())
    with pytest.raises(BackendError, match="cannot be loaded") as caught:
        library(None, tmp_path)
    assert "foredraft rpc-build" in (caught.value.hint or "")
