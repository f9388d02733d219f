"""AMX is used only where another process has seen its products come out right."""

from __future__ import annotations

import ctypes
import math
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import llama_cpp._ggml as ggml
import numpy as np
import numpy.typing as npt
import pytest

from foredraft.backends.llamacpp import amx, amx_check, kernels
from foredraft.backends.llamacpp.amx import Amx, admit, checked, in_use, settled, suits
from foredraft.backends.llamacpp.buffer_types import offers_amx
from gguf_factory import tiny_llama
from gguf_hybrids import tiny_mamba2

LIBRARIES = Path(ggml.libggml._name).parent
ALL = "".join(f"print('{name}', flush=True)\n" for name in amx_check.TYPES)


@pytest.fixture(autouse=True)
def _unsettled() -> Iterator[None]:
    yield
    settled.cache_clear()
    settled()


def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str) -> None:
    """Another check."""
    file = tmp_path / "check.py"
    file.write_text(source)
    monkeypatch.setattr(amx_check, "__file__", str(file))


def test_all_types_right(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(tmp_path, monkeypatch, ALL)
    assert checked(tmp_path) == Amx(used=True, note="its products are exact with every type of weights")
    assert not checked(tmp_path).remedy


@pytest.mark.parametrize(
    ("source", "note"),
    [
        ("print('F16', flush=True)\nimport os\nos.kill(os.getpid(), 11)", "killed by signal 11 at Q4_0"),
        ("import os\nos.kill(os.getpid(), 4)", "killed by signal 4 at F16"),
        (ALL + "import os\nos.kill(os.getpid(), 11)", "killed by signal 11 at its end"),
        (ALL.replace("print('Q6_K', flush=True)\n", ""), "not exact with Q6_K"),
        ("", "not exact with F16, Q4_0"),
        (ALL + "raise SystemExit(3)", "failed (exit code 3)"),
        ("import time\ntime.sleep(30)", "did not finish within 0 s"),
    ],
)
def test_what_goes_wrong_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, note: str
) -> None:
    program(tmp_path, monkeypatch, source)
    if "sleep" in source:
        monkeypatch.setattr(amx, "SECONDS", 0.3)
    found = checked(tmp_path)
    assert not found.used
    assert note in found.note
    assert str(kernels.HEADER) in shlex.split(shlex.split(found.remedy)[0].partition("=")[2])


def test_no_interpreter_to_check_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    found = checked(LIBRARIES)
    assert not found.used
    assert "could not be checked" in found.note


@pytest.mark.parametrize("works", [True, False])
def test_amx_that_does_not_work_is_taken_off_the_list(monkeypatch: pytest.MonkeyPatch, works: bool) -> None:
    taken: list[bool] = []
    settled.cache_clear()
    monkeypatch.setattr(amx, "offers_amx", lambda: True)
    monkeypatch.setattr(amx, "checked", lambda folder: Amx(used=works, note=""))
    monkeypatch.setattr(amx, "without_amx", lambda: taken.append(True))
    assert settled() == settled() == Amx(used=works, note="")
    assert taken == ([] if works else [True])


def test_without_amx_nothing_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    settled.cache_clear()
    monkeypatch.setattr(amx, "offers_amx", lambda: False)
    monkeypatch.setattr(amx, "checked", lambda folder: pytest.fail("nothing to check"))
    assert settled() is None


def test_the_installed_llama_cpp_keeps_amx_only_where_it_is_right() -> None:
    settled.cache_clear()
    found = settled()
    assert offers_amx() is (found is not None and found.used)


# --- models ---------------------------------------------------------------------------------------------


@pytest.fixture
def working(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """AMX works, and no weights lie in it yet. Gets an entry when it is taken off the list."""
    taken: list[bool] = []
    monkeypatch.setattr(amx, "settled", lambda: Amx(used=True, note=""))
    monkeypatch.setattr(amx, "_state", amx._State())
    monkeypatch.setattr(amx, "without_amx", lambda: taken.append(True))
    return taken


def test_a_model_that_amx_suits_keeps_it(working: list[bool], tmp_path: Path) -> None:
    llama, mamba = tiny_llama(tmp_path / "llama.gguf"), tiny_mamba2(tmp_path / "mamba.gguf")
    assert suits(llama)
    assert not suits(mamba)
    assert admit(llama)
    assert not admit(mamba)  # the first one's weights may lie there
    assert admit(llama)
    assert in_use()
    assert not working


def test_a_model_that_amx_does_not_suit_takes_it_from_all(working: list[bool], tmp_path: Path) -> None:
    llama, mamba = tiny_llama(tmp_path / "llama.gguf"), tiny_mamba2(tmp_path / "mamba.gguf")
    assert in_use()
    assert admit(mamba)
    assert not in_use()
    assert admit(llama)
    assert admit(mamba)
    assert working == [True]


def test_what_cannot_be_read_decides_nothing(working: list[bool], tmp_path: Path) -> None:
    assert admit(tmp_path / "none.gguf")
    assert in_use()
    assert not working


# --- the check itself -----------------------------------------------------------------------------------


def test_a_product_is_that_of_the_weights() -> None:
    library = amx_check.Ggml(LIBRARIES)
    numbers = np.random.default_rng(3)
    weights = numbers.uniform(-1, 1, (amx_check._OUTPUTS, amx_check._INPUTS)).astype(np.float32)
    rows = numbers.uniform(-1, 1, (3, amx_check._INPUTS)).astype(np.float32)
    factors = amx_check.Factors(floats(weights), floats(rows))
    found = amx_check.product(library, library.plain, amx_check.TYPES["Q8_0"], factors, 3)
    expected = rows @ weights.T
    assert np.abs(np.array(found).reshape(3, -1) - expected).max() < 0.01 * np.abs(expected).max()


def floats(numbers: npt.NDArray[np.float32]) -> ctypes.Array[ctypes.c_float]:
    return (ctypes.c_float * numbers.size)(*numbers.ravel().tolist())


PLAIN, TILED = 1, 2
"""Kinds of buffers, in a library that is not there."""


@pytest.mark.parametrize(
    ("tiled", "right"),
    [
        (lambda values, count: values, True),
        (lambda values, count: [1.001 * value for value in values], True),
        (lambda values, count: [1.1 * value for value in values], False),
        (lambda values, count: [*values[:-1], values[-1] + 1e-6 * count], False),
        (lambda values, count: [math.nan for _ in values], False),
    ],
    ids=["the same", "rounded otherwise", "far", "another for more rows", "nothing"],
)
def test_what_counts_as_right(
    monkeypatch: pytest.MonkeyPatch, tiled: Callable[[list[float], int], list[float]], right: bool
) -> None:
    def product(ggml: Any, kind: int, number: int, factors: Any, count: int) -> list[float]:
        values = [math.sin(number + at) for at in range(count * amx_check._OUTPUTS)]
        wrong = kind == TILED and number == amx_check.TYPES["Q8_0"]
        return tiled(values, count) if wrong else values

    monkeypatch.setattr(amx_check, "product", product)
    library: Any = SimpleNamespace(plain=PLAIN)
    others = [name for name in amx_check.TYPES if name != "Q8_0"]
    found = list(amx_check.right(library, TILED))
    assert set(found) == {*others, "Q8_0"} if right else set(found) == set(others)


def test_the_check_is_a_program_of_its_own(tmp_path: Path) -> None:
    def run(libraries: Path) -> subprocess.CompletedProcess[bytes]:
        command = [sys.executable, "-I", amx_check.__file__, str(libraries)]
        return subprocess.run(command, capture_output=True, timeout=60, check=False)

    assert b"libggml-base" in run(tmp_path).stderr
    assert run(tmp_path).returncode == 1
    there = run(LIBRARIES)
    assert there.returncode in (0, -signal.SIGSEGV, -signal.SIGILL)
    assert set(there.stdout.decode().split()) <= set(amx_check.TYPES)
