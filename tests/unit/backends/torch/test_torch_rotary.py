"""Rotary positions of every kind: transformers' text, and rows that do not depend on their company."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import torch_factory
from foredraft import Engine
from foredraft.backends import context_size
from foredraft.protocols import Model
from foredraft.types import Rows
from model_cases import text_tokens
from torch_cases import greedy, load, reference

Make = Callable[..., Path]

SHORT, TOKENS = 64, 24
PROMPTS = [text_tokens(5, seed=3), text_tokens(SHORT - TOKENS, seed=5)]
LONG_PROMPT = text_tokens(SHORT + 20, seed=6)


def rope(kind: str, **more: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 1e4, **more}}


LONGROPE = rope(
    "longrope",
    short_factor=[1.0 + 0.125 * i for i in range(8)],
    long_factor=[2.0 + i for i in range(8)],
    original_max_position_embeddings=SHORT,
) | {"original_max_position_embeddings": SHORT}
KINDS = {
    "linear": rope("linear", factor=3.0),
    "llama3": rope(
        "llama3",
        factor=8.0,
        low_freq_factor=1.0,
        high_freq_factor=4.0,
        original_max_position_embeddings=32,
    ),
    "yarn": rope("yarn", factor=4.0, original_max_position_embeddings=256),
    "dynamic": rope("dynamic", factor=2.0),
    "longrope": LONGROPE,
}


def texts(model: Model, prompts: list[list[int]]) -> list[list[int]]:
    with Engine(model, drafters=[]) as engine:
        return [list(engine.generate(prompt, max_tokens=TOKENS).tokens) for prompt in prompts]


@pytest.mark.parametrize(
    ("architecture", "kind"),
    [*((architecture, kind) for architecture in ("llama", "qwen3") for kind in KINDS), ("phi3", "longrope")],
)
def test_greedy_text_is_that_of_generate(folder: Make, architecture: str, kind: str) -> None:
    path = folder(architecture, **KINDS[kind])
    source = reference(path)
    expected = [greedy(source, prompt, TOKENS) for prompt in PROMPTS]
    model = load(path, context_length=SHORT if kind == "longrope" else 256)
    lean = architecture in torch_factory.LEAN and kind in {"linear", "llama3", "yarn"}
    assert (model.info.settings["forward"] == "lean") == lean
    assert texts(model, PROMPTS) == expected


def test_a_longer_context_has_the_frequencies_of_long_texts(folder: Make) -> None:
    path = folder("phi3", **LONGROPE)
    expected = greedy(reference(path), LONG_PROMPT, TOKENS)
    assert texts(load(path, context_length=256), [LONG_PROMPT]) == [expected]


def test_nobody_asks_for_these_unknowingly(folder: Make) -> None:
    path = folder("phi3", **LONGROPE)
    assert load(path, context_length=0).info.context_length == SHORT
    assert load(path, context_length=0, context_at_most=50).info.context_length == 50
    assert load(path, context_length=SHORT + 1).info.context_length == SHORT + 1
    assert load(folder("phi3"), context_length=0).info.context_length == torch_factory.CONTEXT


@pytest.mark.parametrize("context", [SHORT, 256])
@pytest.mark.parametrize(
    ("architecture", "kind"), [("phi3", "longrope"), ("llama", "longrope"), ("llama", "dynamic")]
)
def test_rows_do_not_depend_on_how_long_the_others_texts_are(
    folder: Make, architecture: str, kind: str, context: int
) -> None:
    model = load(folder(architecture, **KINDS[kind]), context_length=context, sequences=2)
    prompt, other = PROMPTS[0], text_tokens(context - 1, seed=9)
    alone = model.forward([Rows(0, 0, prompt, len(prompt))])
    model.release(0)
    beside = model.forward([Rows(0, 0, prompt, len(prompt)), Rows(1, 0, other, 0)])
    assert np.array_equal(alone, beside)
    model.release(0)
    singly = [model.forward([Rows(0, i, prompt[i : i + 1], 1)]) for i in range(len(prompt))]
    assert np.array_equal(np.concatenate(singly), alone)


@pytest.mark.parametrize("step", [1, 7, SHORT, SHORT + 1])
def test_nor_on_the_parts_in_which_a_prompt_comes(folder: Make, step: int) -> None:
    model = load(folder("phi3", **LONGROPE))
    whole = model.forward([Rows(0, 0, LONG_PROMPT, 1)])
    model.release(0)
    for start in range(0, len(LONG_PROMPT), step):
        part = model.forward([Rows(0, start, LONG_PROMPT[start : start + step], 1)])
    assert np.array_equal(part, whole)


def test_the_context_is_what_fits_in_memory(folder: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    path = folder("llama", max_position_embeddings=100_000)
    size = sum(file.stat().st_size for file in path.glob("*.safetensors"))
    for free, length in ((10**12, 100_000), (size, 8_192), (None, 8_192)):
        monkeypatch.setattr(context_size, "free_memory", lambda free=free: free)
        info = load(path, context_length=0).info
        assert info.context_length == length
        assert ("fits in memory" in info.context_chosen) == (length == 100_000)
