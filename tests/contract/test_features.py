"""A model that returns its hidden states: the same logits as without, and the right row for each token."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import gguf_factory
import gguf_hybrids
import gguf_mimo
import torch_factory
import torch_heads
from foredraft.backends import rewind
from foredraft.backends.part import split
from foredraft.errors import BackendError, UnsupportedModelError
from foredraft.protocols import Model
from foredraft.testing import FakeModel
from foredraft.types import Features, Rows
from model_cases import Workspace, one_thread, prefill, same, text_tokens

CONTEXT, SEQUENCES = 256, 4
SPARE = SEQUENCES - 1
TEXT, OTHER = text_tokens(24), text_tokens(15, seed=1)
MOST = 63

Load = Callable[[Workspace, tuple[str, ...]], Model]
"""Loads a model that returns these hidden states."""


def _fake(_workspace: Workspace, watch: tuple[str, ...]) -> Model:
    return FakeModel(context_length=CONTEXT, sequences=SEQUENCES, features=watch)


def _gguf(name: str, write: Callable[[Path], object]) -> Load:
    def load(workspace: Workspace, watch: tuple[str, ...]) -> Model:
        from foredraft.backends.llamacpp import BACKEND

        path = workspace.file(f"{name}.gguf", write)
        return BACKEND.load(path, replace(one_thread(workspace, CONTEXT, SEQUENCES), watch=watch))

    return load


def _torch(name: str, write: Callable[[Path], object]) -> Load:
    def load(workspace: Workspace, watch: tuple[str, ...]) -> Model:
        from foredraft.backends.torch import BACKEND

        folder = workspace.file(f"features-torch-{name}", write)
        return BACKEND.load(folder, replace(one_thread(workspace, CONTEXT, SEQUENCES), watch=watch))

    return load


_llama = _gguf("features-llama", lambda path: gguf_factory.tiny_llama(path, layers=4, mixing=0.5))
_mimo = _gguf("features-mimo", lambda path: gguf_mimo.tiny_mimo2(path, mixing=0.5, weight_type="q8_0"))
_hybrid = _gguf("features-hybrid", lambda path: gguf_hybrids.tiny_qwen35(path, following=1, mixing=0.5))

CASES: dict[str, tuple[Load, tuple[str, ...]]] = {
    "fake": (_fake, ("layer:0", "layer:2")),
    "llamacpp": (_llama, ("layer:1", "layer:3", "layer:2")),
    "llamacpp-one": (_llama, ("layer:0",)),
    "last-output": (_mimo, ("layer:2", "layer:0")),
    "hybrid": (_hybrid, ("next",)),
    "hybrid-layers": (_hybrid, ("layer:2", "next")),
    "torch": (
        _torch("lean", lambda path: torch_factory.make_tiny_llama(path, num_hidden_layers=4)),
        ("layer:1", "layer:3", "next", "layer:2"),
    ),
    "torch-generic": (
        _torch("generic", lambda path: torch_factory.make_model(path, "olmo2")),
        ("layer:1", "next"),
    ),
    "torch-hybrid": (
        _torch("hybrid", lambda path: torch_heads.make_mtp(path, "qwen3_5")),
        ("next", "layer:1"),
    ),
}


@pytest.fixture(scope="module")
def loaded(workspace: Workspace) -> Iterator[Callable[[str, bool], Model]]:
    """Each case's model, with its hidden states and without, loaded once."""
    models: dict[tuple[str, bool], Model] = {}

    def load(name: str, watched: bool) -> Model:
        if (name, watched) not in models:
            make, watch = CASES[name]
            models[name, watched] = make(workspace, watch if watched else ())
        return models[name, watched]

    yield load
    for model in models.values():
        model.close()


@pytest.fixture(params=sorted(CASES))
def pair(
    request: pytest.FixtureRequest, loaded: Callable[[str, bool], Model], monkeypatch: pytest.MonkeyPatch
) -> tuple[Model, Model]:
    """A model that returns its hidden states, and the same without."""
    monkeypatch.setattr(rewind, "MARKED_FROM", 64)  # short enough for this context
    models = loaded(request.param, True), loaded(request.param, False)
    for model in models:
        for seq in range(SEQUENCES):
            model.release(seq)
    return models


@pytest.fixture
def model(pair: tuple[Model, Model]) -> Model:
    return pair[0]


def alone(model: Model, tokens: list[int]) -> Features:
    """The hidden states of all tokens, each computed in a forward of its own."""
    model.release(SPARE)
    rows = []
    for token in tokens:
        prefill(model, SPARE, [token])
        rows.append(model.features().copy())
    model.release(SPARE)
    return np.concatenate(rows)


def test_it_says_what_it_returns(model: Model) -> None:
    names, size = model.capabilities.features, model.capabilities.feature_size
    model.forward([Rows(0, 0, TEXT, 1), Rows(1, 0, OTHER, 0)])
    found = model.features()
    assert found.shape == (len(TEXT) + len(OTHER), len(names) * size)
    assert found.dtype == np.float32
    assert np.isfinite(found).all()


def test_without_any_there_is_an_error(pair: tuple[Model, Model]) -> None:
    _, plain = pair
    assert (plain.capabilities.features, plain.capabilities.feature_size) == ((), 0)
    plain.forward([Rows(0, 0, TEXT, 1)])
    with pytest.raises(BackendError):
        plain.features()
    with pytest.raises(UnsupportedModelError):
        plain.load_head(None, sequences=1)


def test_no_logit_changes(pair: tuple[Model, Model]) -> None:
    for count in range(1, MOST + 1):
        tokens = text_tokens(count, seed=count)
        found = []
        for model in pair:
            model.release(0)
            prefill(model, 0, TEXT)
            found.append(model.forward([Rows(0, len(TEXT), tokens, count)]).copy())
        assert np.array_equal(found[0], found[1]), f"{count} rows"


def test_no_logit_of_a_shared_forward_changes(pair: tuple[Model, Model]) -> None:
    found = []
    for model in pair:
        prefill(model, 2, TEXT[:-1])
        prefill(model, 1, OTHER[:4])
        batch = [Rows(2, len(TEXT) - 1, TEXT[-1:], 1), Rows(0, 0, TEXT[:9], 0), Rows(1, 4, OTHER[4:], 3)]
        found.append([model.forward(batch).copy(), prefill(model, 0, TEXT[9:])])
    assert all(np.array_equal(left, right) for left, right in zip(*found, strict=True))


def test_a_row_is_that_of_its_token_alone(model: Model) -> None:
    text = text_tokens(200, seed=9)
    expected = alone(model, text)
    end = 0
    for count in (3, 20, 1, 17, 2, 63, 16, 40, 5, 33):  # graphs of few rows are kept, those of many are not
        model.forward([Rows(0, end, text[end : end + count], min(count, 2))])
        assert same(model, model.features(), expected[end : end + count]), f"{count} rows"
        end += count


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1), (2, 0), (1,), (2, 1)])
def test_rows_come_in_the_order_of_the_batch(model: Model, order: tuple[int, ...]) -> None:
    texts = [TEXT[:7], OTHER, text_tokens(4, seed=7)]
    expected = [alone(model, text) for text in texts]
    for seq, text in enumerate(texts):
        prefill(model, seq, text[:2])
    rows = [Rows(seq, 2, texts[seq][2:], len(texts[seq]) - 2) for seq in order]
    model.forward(rows)
    assert same(model, model.features(), np.concatenate([expected[seq][2:] for seq in order]))


def test_rows_without_logits_have_them_too(model: Model) -> None:
    expected = alone(model, TEXT), alone(model, OTHER)
    model.forward([Rows(1, 0, OTHER, 0), Rows(0, 0, TEXT, 0)])
    assert same(model, model.features(), np.concatenate([expected[1], expected[0]]))


@pytest.mark.parametrize("rows", [range(3, 9), range(30, 31), [30], [2, 3, 7], range(0)])
def test_only_the_rows_that_are_named(model: Model, rows: Sequence[int]) -> None:
    prefill(model, 2, TEXT[:3])
    for batch in (
        [Rows(1, 0, OTHER, 0), Rows(0, 0, TEXT, 1)],
        [Rows(2, 3, TEXT[3:], 2), Rows(3, 0, OTHER[:7], 7), Rows(0, len(TEXT), OTHER[:9], 1)],
    ):
        model.forward(batch)
        assert np.array_equal(model.features(rows), model.features()[list(rows)])


def test_rows_after_a_rejection(model: Model) -> None:
    draft = text_tokens(12, seed=5)
    expected = alone(model, [*TEXT, *draft[:7], *OTHER])
    prefill(model, 0, TEXT)
    model.forward([Rows(0, len(TEXT), draft, len(draft))])
    model.truncate(0, len(TEXT) + 7)
    start = len(TEXT) + 7
    model.forward([Rows(1, 0, OTHER, 2), Rows(0, start, OTHER, len(OTHER))])
    found = model.features()
    assert found.shape[0] == 2 * len(OTHER)
    assert same(model, found[len(OTHER) :], expected[start:])
    assert same(model, found[: len(OTHER)], alone(model, OTHER))


def test_rows_of_a_long_prompt(model: Model) -> None:
    prompt = text_tokens(100, seed=3)
    expected = alone(model, prompt), alone(model, OTHER)
    prefill(model, 1, OTHER[:-1])
    model.forward([Rows(0, 0, prompt, 1), Rows(1, len(OTHER) - 1, OTHER[-1:], 1)])
    found = model.features()
    assert found.shape[0] == len(prompt) + 1
    assert same(model, found, np.concatenate([expected[0], expected[1][-1:]]))
    model.forward([Rows(1, len(OTHER), TEXT, 1)])
    assert model.features().shape[0] == len(TEXT), "nothing of the forward before"


def test_they_stay_until_the_next_forward(model: Model) -> None:
    model.forward([Rows(0, 0, TEXT, 2), Rows(1, 0, OTHER, 1)])
    found = model.features()
    before = found.copy()
    model.truncate(0, len(TEXT) - 1)
    model.release(1)
    assert np.array_equal(found, before)
    assert np.array_equal(model.features(), before)


def test_a_part_of_a_model_has_them_too(workspace: Workspace) -> None:
    parts = split(_llama(workspace, ("layer:1",)), 2)
    parts[1].forward([Rows(0, 0, TEXT, 1)])
    assert parts[1].features().shape == (len(TEXT), parts[1].capabilities.feature_size)
    for part in parts:
        part.close()
