"""Ctrl-C while llama.cpp computes: it ends a forward in its middle, and the context is usable afterwards."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

import gguf_factory
from foredraft.backends.llamacpp import BACKEND
from foredraft.backends.llamacpp.interruptible import interruptible
from foredraft.backends.llamacpp.model import LlamaCppModel
from foredraft.config import ModelOptions
from foredraft.errors import BackendError
from foredraft.types import Rows
from native_ctrl_c import ABORTED, press_in_a_forward

PROMPT = [Rows(0, 0, list(range(3, 203)), 1)]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return gguf_factory.tiny_llama(tmp_path_factory.mktemp("gguf") / "tiny.gguf")


@pytest.fixture
def model(path: Path) -> Iterator[LlamaCppModel]:
    loaded = BACKEND.load(path, ModelOptions(threads=1, probe=False, gpu_layers=0))
    yield cast("LlamaCppModel", loaded)
    loaded.close()


def test_ctrl_c_ends_a_forward_in_its_middle(model: LlamaCppModel, monkeypatch: pytest.MonkeyPatch) -> None:
    statuses = press_in_a_forward(monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        interruptible(model._context, lambda: model.forward(PROMPT))
    assert statuses == [ABORTED]


def test_the_context_is_usable_afterwards(model: LlamaCppModel) -> None:
    expected = model.forward(PROMPT).copy()
    model.release(0)
    with pytest.MonkeyPatch.context() as patch:
        press_in_a_forward(patch)
        with pytest.raises(KeyboardInterrupt):
            interruptible(model._context, lambda: model.forward(PROMPT))
    model.release(0)
    assert np.array_equal(model.forward(PROMPT), expected)


def test_ctrl_c_ends_work_that_goes_on_after_an_aborted_forward(
    model: LlamaCppModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is ended is the work, not the one forward: the next is ended as soon as it begins."""
    statuses = press_in_a_forward(monkeypatch)

    def stubborn() -> None:
        for _ in range(3):
            with pytest.raises(BackendError):
                model.forward(PROMPT)

    with pytest.raises(KeyboardInterrupt):
        interruptible(model._context, stubborn)
    assert statuses == [ABORTED] * 3


def test_results_and_errors_come_through(model: LlamaCppModel) -> None:
    expected = model.forward(PROMPT).copy()
    model.release(0)
    assert np.array_equal(interruptible(model._context, lambda: model.forward(PROMPT)), expected)
    with pytest.raises(BackendError, match="start at 0; its cache ends at 200"):
        interruptible(model._context, lambda: model.forward(PROMPT))


def test_only_the_main_thread_waits_for_another(model: LlamaCppModel) -> None:
    ran_in: list[Any] = []
    interruptible(model._context, lambda: ran_in.append(threading.current_thread()))
    other = threading.Thread(
        target=lambda: interruptible(model._context, lambda: ran_in.append(threading.current_thread()))
    )
    other.start()
    other.join()
    assert ran_in[0] is not threading.main_thread()
    assert ran_in[1] is other
