"""Forwards leave the caller's thread where PyTorch may set AMX's tiles there."""

from __future__ import annotations

import _thread
import sys
import threading
import time
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from foredraft.backends.llamacpp import amx, own_thread
from foredraft.backends.llamacpp.loading import load_model
from foredraft.backends.llamacpp.own_thread import OTHERS, OwnThread, apart, needed
from foredraft.config import ModelOptions
from foredraft.types import Logits, Rows
from gguf_factory import tiny_llama


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """AMX is in use, and nobody else has been imported."""
    monkeypatch.setattr(amx, "in_use", lambda: True)
    for name in OTHERS:
        monkeypatch.delitem(sys.modules, name, raising=False)


@pytest.mark.usefixtures("alone")
def test_alone_the_caller_computes() -> None:
    assert not needed()
    assert OwnThread().run(threading.current_thread) is threading.current_thread()
    assert apart(threading.current_thread) is threading.current_thread()


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("other", OTHERS)
def test_from_the_import_of_another_on_one_thread_computes(
    monkeypatch: pytest.MonkeyPatch, other: str
) -> None:
    thread = OwnThread()
    assert thread.run(threading.current_thread) is threading.current_thread()
    monkeypatch.setitem(sys.modules, other, ModuleType(other))
    assert needed()
    first, second = thread.run(threading.current_thread), thread.run(threading.current_thread)
    assert first is second is not threading.current_thread()
    assert apart(threading.current_thread) not in (first, threading.current_thread())
    thread.close()
    assert not first.is_alive()
    assert thread.run(threading.current_thread) is not first
    thread.close()


def test_without_amx_the_caller_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(amx, "in_use", lambda: False)
    monkeypatch.setitem(sys.modules, "torch", ModuleType("torch"))
    assert not needed()
    assert OwnThread().run(threading.current_thread) is threading.current_thread()


def test_errors_come_through(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_thread, "needed", lambda: True)

    def fail() -> None:
        raise ValueError("no room")

    with pytest.raises(ValueError, match="no room"):
        apart(fail)


def test_ctrl_c_waits_for_the_end_of_a_forward(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_thread, "needed", lambda: True)
    ended: list[bool] = []

    def work() -> None:
        _thread.interrupt_main()
        time.sleep(0.3)
        ended.append(True)

    thread = OwnThread()
    with pytest.raises(KeyboardInterrupt):
        thread.run(work)
    assert ended == [True]
    thread.close()


def test_pytorch_in_between_changes_no_logits(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    model = load_model(
        tiny_llama(tmp_path / "model.gguf", weight_type="q8_0"),
        ModelOptions(threads=2, context_length=256, probe=False),
    )

    def logits(rows: int) -> Logits:
        model.truncate(0, 0)
        return model.forward([Rows(0, 0, list(range(3, 3 + rows)), rows)]).copy()

    sizes = (1, 2, 17, 33)
    before = [logits(rows) for rows in sizes]
    weights, inputs = torch.randn(576, 256).bfloat16(), torch.randn(33, 256).bfloat16()
    for rows, expected in zip(sizes, before, strict=True):
        torch.nn.functional.linear(inputs[:rows], weights)
        assert np.array_equal(logits(rows), expected)
    model.close()
