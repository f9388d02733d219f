"""What a forward leaves that failed half way: its sequences are as before, or empty."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import gguf_mimo
import torch_heads
from foredraft.backends.torch.kv import KVCache
from foredraft.errors import BackendError, CapacityError
from foredraft.images import ImageSpan
from foredraft.library.adapter_files import adapters_of
from foredraft.protocols import Model
from foredraft.types import HeadRows, Rows
from head_cases import rows, states
from model_cases import same, text_tokens
from peft_adapters import peft
from seeing_factory import make_seeing_model, picture
from torch_cases import load

Make = Callable[..., Path]
TEXT, OTHER, MORE = text_tokens(20), text_tokens(9, seed=1), text_tokens(3, seed=2)
KINDS = ("llama", "gemma2", "mamba2", "qwen3_5", "bloom")
"""Of each forward one: our own, transformers' with our cells, with our states, and with its own cache."""

_RAISED = {RuntimeError: BackendError, torch.OutOfMemoryError: CapacityError}


@contextmanager
def failing(monkeypatch: pytest.MonkeyPatch, number: int, error: type[BaseException]) -> Iterator[None]:
    """Within, the `number`-th pass over the model fails when its logits are fetched, after all its layers."""
    fetch, count = torch.Tensor.cpu, 0

    def counted(tensor: Any, *given: Any, **named: Any) -> Any:
        nonlocal count
        count += tensor.dim() == 2
        if tensor.dim() == 2 and count == number:
            raise error
        return fetch(tensor, *given, **named)

    with monkeypatch.context() as patched:
        patched.setattr(torch.Tensor, "cpu", counted)
        with pytest.raises(_RAISED.get(error, error)):
            yield
    assert count >= number


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
@pytest.mark.parametrize("kind", KINDS)
def test_its_sequences_go_on_from_where_they_were(
    kind: str, error: type[BaseException], folder: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = load(folder(kind), sequences=3)
    for seq in range(2):
        model.forward([Rows(seq, 0, TEXT, 1)])
    batch = [Rows(0, len(TEXT), MORE, 1)]
    expected = model.forward(batch).copy()
    with failing(monkeypatch, 1, error):
        model.forward([Rows(1, len(TEXT), OTHER, 1), Rows(2, 0, OTHER, 0)])
    assert [model.length(seq) for seq in (1, 2)] == [len(TEXT), 0]
    assert same(model, model.forward([Rows(1, len(TEXT), MORE, 1)])[0], expected[0])
    model.release(0)
    expected = model.forward([Rows(0, 0, OTHER, 1)]).copy()
    assert same(model, model.forward([Rows(2, 0, OTHER, 1)])[0], expected[0])


@pytest.mark.parametrize("kind", ["llama", "mamba2", "qwen3_5"])
def test_a_state_goes_back_where_its_cells_cannot_be_overwritten(
    kind: str, folder: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A device without memory for the forward may have none for that either."""
    model = load(folder(kind), sequences=2)
    for seq in range(2):
        model.forward([Rows(seq, 0, TEXT, 1)])
    batch = [Rows(seq, len(TEXT), MORE, 1) for seq in range(2)]
    expected = model.forward(batch).copy()
    for seq in range(2):
        model.release(seq)
        model.forward([Rows(seq, 0, TEXT, 1)])

    def full(*_: object) -> None:
        raise torch.OutOfMemoryError

    with monkeypatch.context() as patched:
        patched.setattr(KVCache, "undo", full)
        with failing(monkeypatch, 1, torch.OutOfMemoryError):
            model.forward([Rows(seq, len(TEXT), OTHER, 1) for seq in range(2)])
    assert [model.length(seq) for seq in range(2)] == [len(TEXT)] * 2
    for found, right in zip(model.forward(batch), expected, strict=True):
        assert same(model, found, right)


@pytest.mark.usefixtures("without_kernels")
def test_of_a_state_that_cannot_be_taken_back_nothing_is_left(
    folder: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = load(folder("kimi_linear"), sequences=2)
    model.forward([Rows(0, 0, TEXT, 1)])
    with failing(monkeypatch, 1, KeyboardInterrupt):
        model.forward([Rows(0, len(TEXT), OTHER, 1)])
    assert model.length(0) == 0
    expected = model.forward([Rows(1, 0, OTHER, 1)]).copy()
    assert same(model, model.forward([Rows(0, 0, OTHER, 1)])[0], expected[0])


@pytest.mark.parametrize("kind", ["llama", "qwen3_5", "bloom"])
@pytest.mark.parametrize("number", [1, 2])
def test_a_forward_with_several_adapters(
    number: int, kind: str, folder: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two passes the second fails: what the first one computed is taken back, or is a part of its text."""
    source = folder(kind)
    adapter = peft(tmp_path / "one", source)
    model = load(source, sequences=4, adapters=adapters_of({"one": [str(adapter)]}))
    for seq in (1, 3):
        model.adapt(seq, "one")
    for seq in range(4):
        model.forward([Rows(seq, 0, TEXT, 1)])
    with failing(monkeypatch, number, KeyboardInterrupt):
        model.forward([Rows(seq, len(TEXT), MORE, 1) for seq in range(2)])
    for seq in range(2):
        held = model.length(seq)
        rest = [*MORE[held - len(TEXT) :], *OTHER]
        found = model.forward([Rows(seq, held, rest, 1)]).copy()
        expected = model.forward([Rows(seq + 2, len(TEXT), [*MORE, *OTHER], 1)])
        assert np.allclose(found, expected, atol=1e-3, rtol=1e-3)


def test_an_image_of_a_failed_forward_moves_no_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = load(make_seeing_model(tmp_path / "q", "qwen2_vl"), sequences=2)
    assert model.vision is not None
    image = model.vision.prepare(picture(56, 84))
    spans = [ImageSpan(len(TEXT) + first, count, image, run) for run, (first, count) in enumerate(image.runs)]
    long = text_tokens(len(image.tokens) + 20, seed=3)
    for seq in range(2):
        model.forward([Rows(seq, 0, TEXT, 1)])
    with failing(monkeypatch, 1, KeyboardInterrupt):
        model.forward([Rows(0, len(TEXT), image.tokens, 1, images=spans)])
    expected = model.forward([Rows(1, len(TEXT), long, 1)]).copy()
    assert same(model, model.forward([Rows(0, len(TEXT), long, 1)])[0], expected[0])


def test_cells_that_are_no_numbers_are_overwritten(folder: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    model = load(folder("llama"), sequences=2)
    for seq in range(2):
        model.forward([Rows(seq, 0, TEXT, 1)])
    cells = model._cache.layer  # type: ignore[attr-defined]
    with failing(monkeypatch, 1, KeyboardInterrupt):
        model.forward([Rows(0, len(TEXT), OTHER, 1)])
    buffers = cells(0, 2, 16, 16)
    assert not buffers.keys[0, :, len(TEXT) :].any()
    assert not buffers.values[0, :, len(TEXT) :].any()


def test_there_are_no_features_of_rows_that_were_refused(folder: Make) -> None:
    model: Model = load(folder("llama"), sequences=1, watch=("layer:1",))
    model.forward([Rows(0, 0, TEXT, 1)])
    with pytest.raises(BackendError, match="start at"):
        model.forward([Rows(0, 1, TEXT, 1)])
    with pytest.raises(BackendError, match="no hidden states"):
        model.features()


def test_a_heads_draft_goes_on_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside rows of another sequence, which are not its own either."""
    source = gguf_mimo.tiny_mimo2(tmp_path / "source", mixing=0.5)
    model = load(torch_heads.make_mimo_of(tmp_path / "m", source), sequences=2, watch=("next",))
    head = model.load_head(None, sequences=2)
    features = states(model, TEXT)
    head.forward([rows(0, TEXT, features, 1, len(TEXT), 1)])
    steps = [HeadRows(0, len(TEXT), [50], None, 1), rows(1, TEXT, features, 1, 9, 1)]
    expected = head.forward(steps).copy()
    for seq in range(2):
        head.release(seq)
    head.forward([rows(0, TEXT, features, 1, len(TEXT), 1)])
    with failing(monkeypatch, 2, KeyboardInterrupt):
        head.forward(steps)
    assert [head.length(seq) for seq in range(2)] == [len(TEXT), 0]
    assert np.allclose(head.forward(steps), expected, rtol=2e-2, atol=5e-2)
