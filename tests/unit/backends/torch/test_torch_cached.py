"""Models that keep transformers' own cache: what can be taken back, and what only as a whole."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from transformers import DynamicCache

from foredraft import Engine
from foredraft.backends.torch import cached
from foredraft.errors import BackendError, UnsupportedModelError
from foredraft.types import Rollback, Rows
from model_cases import fresh, prefill, same, text_tokens
from torch_cases import greedy, load, reference

pytestmark = pytest.mark.usefixtures("without_kernels")

Make = Callable[..., Path]
TEXT, OTHER = text_tokens(20), text_tokens(9, seed=1)


@pytest.mark.parametrize("architecture", ["bloom", "kimi_linear"])
def test_sequences_do_not_disturb_each_other(folder: Make, architecture: str) -> None:
    model = load(folder(architecture), sequences=3)
    prefill(model, 0, TEXT[:12])
    logits = model.forward([Rows(1, 0, OTHER, 2), Rows(0, 12, TEXT[12:], 3)]).copy()
    for row, text in zip(logits, [OTHER[:-1], OTHER, TEXT[:-2], TEXT[:-1], TEXT], strict=True):
        np.testing.assert_allclose(row, fresh(model, 2, text), atol=1e-3, rtol=1e-3)
    assert [model.length(seq) for seq in range(3)] == [len(TEXT), len(OTHER), 0]


def test_without_a_state_the_last_tokens_can_be_taken_back(folder: Make) -> None:
    model = load(folder("bloom"), sequences=3)
    assert model.capabilities.rollback is Rollback.TRUNCATE
    prefill(model, 0, TEXT)
    model.fork(0, 1, 7)
    model.truncate(0, 11)
    assert same(model, prefill(model, 1, OTHER), fresh(model, 2, TEXT[:7] + OTHER))
    assert same(model, prefill(model, 0, OTHER), fresh(model, 2, TEXT[:11] + OTHER))
    model.keep_path(0, 11, (0, 1))
    assert same(model, prefill(model, 0, TEXT), fresh(model, 2, [*TEXT[:11], *OTHER[:2], *TEXT]))


def test_a_state_is_kept_and_put_back_as_a_whole(folder: Make) -> None:
    model = load(folder("kimi_linear"), sequences=3, probe=True)
    capabilities = model.capabilities
    assert (capabilities.rollback, capabilities.rollback_bound) == (Rollback.BOUNDED, 0)
    assert not any((capabilities.trees, capabilities.fork))
    assert "recurrent state" in capabilities.invariance_note
    prefill(model, 0, TEXT)
    snapshot = model.snapshot(0)
    prefill(model, 0, OTHER)
    model.restore(1, snapshot)
    assert same(model, prefill(model, 1, OTHER[:3]), fresh(model, 2, TEXT + OTHER[:3]))
    with pytest.raises(BackendError, match="restore a snapshot"):
        model.truncate(0, 5)
    with pytest.raises(BackendError, match="restore a snapshot"):
        model.fork(0, 1, 5)
    with pytest.raises(BackendError, match="not a snapshot"):
        model.restore(0, b"")
    assert model.length(0) == 0
    assert same(model, prefill(model, 0, OTHER), fresh(model, 2, OTHER))


@pytest.mark.parametrize("architecture", ["bloom", "kimi_linear"])
def test_trees_are_refused(folder: Make, architecture: str) -> None:
    model = load(folder(architecture))
    with pytest.raises(BackendError, match="only verifies chains"):
        model.forward([Rows(0, 0, (30, 31, 32), 3, (-1, 0, 0))])
    prefill(model, 0, TEXT)
    with pytest.raises(BackendError, match="only verifies chains"):
        model.keep_path(0, 3, (0, 2))


def test_the_engine_says_why_nothing_is_drafted(folder: Make, tmp_path: Path) -> None:
    path = folder("kimi_linear") / "config.json"
    with Engine.load(path, threads=1, gpu_layers=0, cache_dir=tmp_path, remember=False) as engine:
        result = engine.generate("the quick brown fox", max_tokens=8)
    assert not result.speculation.active
    assert "recurrent state" in (result.speculation.reason or "")


@pytest.mark.parametrize("architecture", ["bloom", "mamba", "kimi_linear", "zamba2"])
def test_greedy_text_is_that_of_generate(folder: Make, architecture: str) -> None:
    path = folder(architecture)
    expected = greedy(reference(path), TEXT, 24)
    model = load(path)
    assert model.info.settings["forward"] == "transformers, with its own cache"
    with Engine(model, drafters=()) as engine:
        assert list(engine.generate(TEXT, max_tokens=24).tokens) == expected


def test_a_cache_of_another_kind_is_refused_in_words(folder: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """As xLSTM's forward does, with the layers of the package of that name."""
    monkeypatch.setattr(DynamicCache, "update", property(lambda self: self.rnn_state))
    with pytest.raises(UnsupportedModelError, match=r"another kind .*rnn_state"):
        load(folder("bloom"))


def test_a_cache_by_another_name_is_refused_in_words(folder: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """As every model's was when transformers 5.24 called it otherwise."""
    monkeypatch.setattr(cached, "CACHE_NAMES", ("kv_store",))
    with pytest.raises(UnsupportedModelError, match=r"BloomForCausalLM .* has no cache argument .*kv_store"):
        load(folder("bloom"))
