"""Sliding-window models: what llama.cpp leaves out of a copied sequence is never computed with."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from foredraft.backends.llamacpp.loading import load_model
from foredraft.config import ModelOptions
from foredraft.errors import BackendError
from foredraft.protocols import Model
from gguf_windows import tiny_gemma3
from model_cases import fresh, prefill, text_tokens

WINDOW = 32
TEXT = text_tokens(4 * WINDOW)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Model]:
    folder = tmp_path_factory.mktemp("window")
    options = ModelOptions(context_length=512, sequences=3, threads=1, gpu_layers=0, cache_dir=folder)
    loaded = load_model(tiny_gemma3(folder / "window.gguf", window=WINDOW), options)
    yield loaded
    loaded.close()


@pytest.fixture(autouse=True)
def empty(model: Model) -> None:
    for seq in range(3):
        model.release(seq)


def test_the_window_is_known(model: Model) -> None:
    assert model.capabilities.window == WINDOW
    assert model.capabilities.batch_invariant


def test_the_window_matters(model: Model) -> None:
    """What stands before it reaches the last row through the layers below only."""
    prefill(model, 0, TEXT)
    assert model.reachable(0, len(TEXT)) == len(TEXT)
    one_layer_back = [*TEXT[: WINDOW // 2], *TEXT[3 * WINDOW :]]
    assert not np.array_equal(fresh(model, 1, one_layer_back), fresh(model, 1, TEXT[3 * WINDOW :]))


@pytest.mark.parametrize("length", [1, WINDOW, 2 * WINDOW, len(TEXT) - 1])
def test_a_sequence_in_place_can_be_cut_anywhere(model: Model, length: int) -> None:
    expected = fresh(model, 1, [*TEXT[:length], 50])
    prefill(model, 0, TEXT)
    assert model.reachable(0, length) == length
    model.truncate(0, length)
    assert np.array_equal(prefill(model, 0, [50]), expected)


@pytest.mark.parametrize("held", [WINDOW, WINDOW + 1, len(TEXT)])
@pytest.mark.parametrize("back", [0, 1, 2, WINDOW])
@pytest.mark.parametrize("way", ["fork", "restore"])
def test_a_copy_is_right_or_refused(model: Model, held: int, back: int, way: str) -> None:
    length = held - back
    expected = fresh(model, 1, [*TEXT[:length], 50])
    prefill(model, 0, TEXT[:held])
    reaches = model.capabilities.copy_reaches(held, length)
    assert reaches is (held <= WINDOW or back <= 1)
    if way == "fork":
        if not reaches:
            with pytest.raises(BackendError, match="cannot be copied"):
                model.fork(0, 2, length)
            assert model.length(2) == 0
            return
        model.fork(0, 2, length)
    else:
        model.restore(2, model.snapshot(0))
        assert model.reachable(2, length) == (length if reaches else 0)
        if length and not reaches:
            with pytest.raises(BackendError, match="sliding window"):
                model.truncate(2, length)
            assert model.length(2) == held
            return
        model.truncate(2, length)
    assert np.array_equal(prefill(model, 2, [50]), expected)


def test_what_was_added_to_a_copy_can_be_taken_back(model: Model) -> None:
    prefill(model, 0, TEXT)
    model.fork(0, 2, len(TEXT))
    expected = prefill(model, 2, [50])
    prefill(model, 2, [51, 52, 53])
    model.truncate(2, len(TEXT))
    assert np.array_equal(prefill(model, 2, [50]), expected)


def test_a_released_copy_begins_anew(model: Model) -> None:
    prefill(model, 0, TEXT)
    model.fork(0, 2, len(TEXT))
    model.release(2)
    prefill(model, 2, TEXT)
    model.truncate(2, 5)
    assert model.length(2) == 5
