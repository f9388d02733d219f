"""Snapshots of every kind of cache are bytes, from which another process goes on as if they were its own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import cast

import numpy as np
import pytest

import torch_factory
from foredraft import Engine, SamplingParams
from foredraft.config import Dtype
from foredraft.errors import BackendError
from foredraft.protocols import Model
from foredraft.types import Completion
from matrix import nightly
from model_cases import fresh, prefill, text_tokens
from torch_cases import load

Make = Callable[..., Path]
TEXT, OTHER = text_tokens(100), text_tokens(9, seed=1)
OWN = "own cache, "
OWN_CACHE = [f"{OWN}{name}" for name in ("bloom", "kimi_linear", "zamba")]
"""Computed by transformers over its own cache, as if there were no kernels for them."""
OFTEN = ["llama", "mamba", "falcon_h1", "lfm2", "qwen3_5", "rwkv", *OWN_CACHE]


@pytest.fixture
def path(folder: Make, architecture: str, request: pytest.FixtureRequest) -> Path:
    if architecture.startswith(OWN):
        request.getfixturevalue("without_kernels")
    return folder(architecture.removeprefix(OWN))


def saved(model: Model, seq: int = 0) -> bytearray:
    """A snapshot as it is on the disk."""
    snapshot = cast("bytearray", model.snapshot(seq))
    assert type(snapshot) is bytearray
    return bytearray(bytes(snapshot))


@pytest.mark.parametrize(
    ("architecture", "dtype"),
    [
        pytest.param(name, "fp32", marks=() if name in OFTEN else nightly)
        for name in ["llama", *torch_factory.RECURRENT, *OWN_CACHE]
    ]
    + [pytest.param(name, "bf16", marks=nightly) for name in OFTEN],
)
def test_another_process_goes_on_from_the_same_bits(path: Path, dtype: Dtype) -> None:
    first, second = (load(path, dtype, sequences=3) for _ in range(2))
    assert first.capabilities.snapshot_key == second.capabilities.snapshot_key != ""
    prefill(first, 1, OTHER)
    prefill(first, 0, TEXT)
    snapshot = saved(first)
    expected = prefill(first, 0, OTHER)
    prefill(second, 2, OTHER)
    second.restore(2, snapshot)
    assert second.length(2) == len(TEXT)
    assert np.array_equal(prefill(second, 2, OTHER), expected)
    second.restore(1, snapshot)
    assert np.array_equal(prefill(second, 1, OTHER), expected), "a snapshot is not used up"


@pytest.mark.parametrize("architecture", ["mamba", "falcon_h1", *OWN_CACHE])
def test_a_snapshot_is_whole_or_refused(path: Path) -> None:
    model = load(path, sequences=2)
    prefill(model, 0, TEXT)
    whole = saved(model)
    longer = whole + b"\0" * 4
    negative = bytearray(b"\xff" * 8) + whole[8:]
    for damaged in (whole[:-4], longer, negative, bytearray(), bytearray(5)):
        prefill(model, 1, OTHER)
        with pytest.raises(BackendError, match="not a snapshot"):
            model.restore(1, damaged)
        model.release(1)
    model.restore(1, whole)
    assert np.array_equal(prefill(model, 1, OTHER), prefill(model, 0, OTHER))


@pytest.mark.parametrize("architecture", ["lfm2", "rwkv", *OWN_CACHE])
def test_an_empty_sequence_has_a_snapshot_too(path: Path) -> None:
    model = load(path, sequences=2)
    empty = saved(model)
    prefill(model, 0, TEXT)
    model.restore(0, empty)
    assert model.length(0) == 0
    assert np.array_equal(prefill(model, 0, OTHER), fresh(model, 1, OTHER))


def test_what_changes_the_state_changes_the_key(folder: Make) -> None:
    keys = {
        load(path, dtype, context_length=context).capabilities.snapshot_key
        for path in (folder("mamba"), folder("mamba", seed=1))
        for dtype in ("fp32", "bf16")
        for context in (128, 256)
    }
    assert len(keys) == 8


# --- through the engine --------------------------------------------------------------------------------


def ask(path: Path, cache_dir: Path, prompt: list[int], gigabytes: float, temperature: float) -> Completion:
    """An answer of a process of its own."""
    params = SamplingParams(temperature=temperature, seed=5, max_tokens=24, ignore_eos=True)
    with Engine.load(
        path / "config.json",
        speculate="suffix;recycle" if gigabytes else "off",
        threads=1,
        gpu_layers=0,
        context_length=512,
        cache_dir=cache_dir,
        prefix_cache_gb=gigabytes,
    ) as engine:
        return engine.generate(prompt, params)


@pytest.mark.parametrize(
    ("architecture", "temperature"),
    [
        ("llama", 0.8),
        ("mamba", 0.0),
        (OWN_CACHE[1], 0.0),
        pytest.param("rwkv", 0.8, marks=nightly),
        pytest.param("falcon_h1", 0.0, marks=nightly),
    ],
)
def test_a_restart_finds_the_conversation(path: Path, temperature: float, tmp_path: Path) -> None:
    first = ask(path, tmp_path, TEXT, 1, temperature)
    prompt = [*TEXT, *first.tokens, *OTHER]
    found = ask(path, tmp_path, prompt, 1, temperature)
    assert found.usage.cached_tokens >= len(TEXT) + len(first.tokens) - 1
    assert found.timings.prompt_n == len(prompt) - found.usage.cached_tokens
    expected = [ask(path, tmp_path, text, 0, temperature) for text in (TEXT, prompt)]
    assert all(answer.usage.cached_tokens == 0 for answer in expected)
    assert [first.tokens, found.tokens] == [answer.tokens for answer in expected]
