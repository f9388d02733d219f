"""Saved cells of llama.cpp that are repeated stand for a long context, and nothing else is."""

from __future__ import annotations

import numpy as np
import pytest

import gguf_factory
from foredraft.backends.llamacpp import BACKEND
from foredraft.backends.llamacpp.repeated_cells import repeated
from foredraft.config import ModelOptions
from foredraft.protocols import Model
from foredraft.types import Rows

MOST = 1 << 30
CELLS = 7


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    path = gguf_factory.tiny_llama(tmp_path_factory.mktemp("model") / "tiny.gguf", ctx_train=2048)
    return BACKEND.load(path, ModelOptions(threads=1, sequences=2, context_length=640, probe=False))


@pytest.fixture
def saved(model: Model) -> bytearray:
    """A sequence of `CELLS` cells."""
    model.release(0)
    model.forward([Rows(0, 0, list(range(20, 20 + CELLS)), 0)])
    snapshot = model.snapshot(0)
    assert isinstance(snapshot, bytearray)
    return snapshot


def test_the_same_length_is_the_same_sequence(saved: bytearray) -> None:
    assert repeated(saved, CELLS, most_bytes=MOST) == saved


def test_fewer_cells_are_those_of_a_shorter_sequence(model: Model, saved: bytearray) -> None:
    model.truncate(0, 3)
    assert repeated(saved, 3, most_bytes=MOST) == model.snapshot(0)


@pytest.mark.parametrize("length", [8, 14, 255, 520])
def test_a_longer_sequence_can_be_gone_on_from(model: Model, saved: bytearray, length: int) -> None:
    longer = repeated(saved, length, most_bytes=MOST)
    assert longer is not None
    found = []
    for seq in (0, 1):
        model.restore(seq, longer)
        assert model.length(seq) == length
        found.append(model.forward([Rows(seq, length, [30], 1)]).copy())
        model.truncate(seq, length)
    assert model.snapshot(0) == longer
    assert np.isfinite(found[0]).all()
    assert np.array_equal(found[0], found[1])


def test_no_more_memory_is_taken_than_allowed(saved: bytearray) -> None:
    size = len(repeated(saved, 500, most_bytes=MOST) or b"")
    assert size > 50 * len(saved)
    assert repeated(saved, 500, most_bytes=size // 2) is None


def test_what_is_not_such_a_sequence_is_left_alone(saved: bytearray) -> None:
    for damaged in (saved[:-1], saved[1:], b"", saved + b"\0", bytearray(len(saved)), saved[:20]):
        assert repeated(damaged, 20, most_bytes=MOST) is None


def test_an_empty_sequence_is_left_alone(model: Model) -> None:
    model.release(0)
    assert repeated(model.snapshot(0), 20, most_bytes=MOST) is None  # type: ignore[arg-type]
