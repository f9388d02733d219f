"""Snapshots of a model with a `snapshot_key`: bytes that another process with the same key can restore."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from foredraft.errors import BackendError
from foredraft.protocols import Model
from model_cases import CASES, Workspace, fresh, prefill, same, text_tokens

TEXT = text_tokens(24)
OTHER = text_tokens(15, seed=1)
SPARE = 2

Make = Callable[[int], Model]
"""Loads the model anew, with a context length."""


@pytest.fixture(params=sorted(CASES))
def make(request: pytest.FixtureRequest, workspace: Workspace) -> Iterator[Make]:
    made: list[Model] = []

    def load(context_length: int = 96) -> Model:
        made.append(CASES[request.param](workspace, context_length, 3))
        return made[-1]

    yield load
    for model in made:
        model.close()


def saved(model: Model, seq: int) -> bytearray:
    snapshot = model.snapshot(seq)
    assert isinstance(snapshot, bytearray)
    return snapshot


def test_another_model_of_the_same_key_goes_on_from_the_bytes(make: Make) -> None:
    first, second = make(96), make(96)
    assert first.capabilities.snapshot_key == second.capabilities.snapshot_key != ""
    prefill(first, 0, TEXT)
    moved = bytearray(bytes(saved(first, 0)))
    first.close()
    prefill(second, 1, OTHER)
    second.restore(1, moved)
    assert second.length(1) == len(TEXT)
    assert same(second, prefill(second, 1, OTHER), fresh(second, SPARE, TEXT + OTHER))


def test_what_was_restored_can_be_cut(make: Make) -> None:
    first, second = make(96), make(96)
    prefill(first, 0, TEXT)
    second.restore(1, saved(first, 0))
    second.truncate(1, 10)
    assert same(second, prefill(second, 1, OTHER), fresh(second, SPARE, TEXT[:10] + OTHER))


def test_the_bytes_are_the_callers_own(make: Make) -> None:
    model = make(96)
    prefill(model, 0, TEXT)
    snapshot = saved(model, 0)
    before = bytes(snapshot)
    model.restore(1, snapshot)
    prefill(model, 0, OTHER)
    prefill(model, 1, OTHER)
    assert snapshot == before
    snapshot += b"more"  # nothing holds on to it
    model.restore(1, bytearray(before))
    assert same(model, prefill(model, 1, OTHER), fresh(model, SPARE, TEXT + OTHER))


def test_another_context_length_is_another_key(make: Make) -> None:
    assert make(96).capabilities.snapshot_key != make(64).capabilities.snapshot_key


def test_half_a_snapshot_leaves_an_empty_sequence(make: Make) -> None:
    model = make(96)
    prefill(model, 0, TEXT)
    half = saved(model, 0)[: -len(TEXT) * 2 - 1]
    prefill(model, 1, OTHER)
    with pytest.raises(BackendError):
        model.restore(1, half)
    assert model.length(1) == 0
    assert same(model, prefill(model, 1, TEXT), fresh(model, SPARE, TEXT))
