"""Memory: what requests take, they give back."""

from __future__ import annotations

import gc
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig

from foredraft.backends import context_size
from foredraft.backends.torch.context_memory import _whole_layers
from foredraft.config import Rope
from foredraft.errors import CapacityError
from foredraft.protocols import Model
from foredraft.types import Rollback, Rows
from model_cases import prefill, text_tokens
from torch_cases import load

Make = Callable[..., Path]
REQUESTS, NIGHTLY_REQUESTS = 12, 40


def held() -> int:
    """The bytes of all tensors but oneDNN's, each stretch of memory once."""
    gc.collect()
    kinds = {torch.Tensor, torch.nn.Parameter}
    tensors = [value for value in gc.get_objects() if type(value) in kinds and value.layout is torch.strided]
    return sum({t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}.values())


def serve(model: Model, number: int) -> None:
    """A request of some length in one of three sequences, beside another one: drafts, copies, an end."""
    seq, other = number % 3, (number + 1) % 3
    tokens = text_tokens(10 + 37 * number % 200, seed=number)
    prefill(model, other, tokens[:5])
    prefill(model, seq, tokens)
    start = model.length(seq)
    model.forward([Rows(seq, start, tokens[:4], 4), Rows(other, 5, tokens[:1], 1)])
    if model.capabilities.rollback is Rollback.TRUNCATE:
        model.keep_path(seq, start, (0, 1))
        model.fork(seq, other, start)
    snapshot = model.snapshot(seq)
    model.release(seq)
    model.restore(seq, snapshot)
    for sequence in range(3):
        model.release(sequence)


@pytest.mark.parametrize("architecture", ["llama", "gemma2", "falcon_h1", "rwkv", "bloom"])
def test_requests_leave_nothing_behind(folder: Make, architecture: str, is_nightly: bool) -> None:
    model = load(folder(architecture), sequences=3)
    for number in range(4):
        serve(model, number)
    before = held()
    for number in range(4, NIGHTLY_REQUESTS if is_nightly else REQUESTS):
        serve(model, number)
    assert held() <= before
    model.close()


def test_a_context_that_no_memory_could_hold_is_refused(
    folder: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = folder()
    weights = sum(file.stat().st_size for file in path.glob("*.safetensors"))
    taken = 3 * 2 * 2 * 2 * 16 * 4  # sequences, K and V, layers, heads, numbers, bytes
    monkeypatch.setattr(context_size, "all_memory", lambda: weights + taken * 10_000)
    asked: Any = {"sequences": 3, "rope": Rope(freq_base=1e6)}
    with pytest.raises(CapacityError, match="12,000 tokens for each of 3 sequences takes") as error:
        load(path, context_length=12_000, **asked)
    found = re.search(r"at most ([\d,]+) tokens", error.value.hint or "")
    assert found
    longest = int(found[1].replace(",", ""))
    assert longest == pytest.approx(10_000, abs=5)
    model = load(path, context_length=longest, **asked)
    assert model.info.context_length == longest
    model.close()
    with pytest.raises(CapacityError):
        load(path, context_length=longest + 1, **asked)


def test_layers_that_keep_a_part_of_the_text_do_not_count(folder: Make) -> None:
    whole = {
        kind: _whole_layers(AutoConfig.from_pretrained(folder(kind)).get_text_config())
        for kind in ("llama", "gemma2", "falcon_h1", "rwkv", "bloom")
    }
    assert whole == {"llama": 2, "gemma2": 1, "falcon_h1": 0, "rwkv": 0, "bloom": 2}


def test_views_of_the_cache_do_not_add_up(folder: Make) -> None:
    model = load(folder(), sequences=8, context_length=1024, batch=1024)
    for number in range(100):
        seq = number % 8
        model.release(seq)
        tokens = text_tokens(1 + 97 * number % 1000, seed=number)
        prefill(model, seq, tokens)
    layers = model._cache._layers.values()  # type: ignore[attr-defined]
    assert all(0 < len(layer.views) <= 32 for layer in layers)
    model.close()
