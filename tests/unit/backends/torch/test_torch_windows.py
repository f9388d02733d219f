"""Sliding windows and chunks of attention, told to attention or only in a mask: transformers' text."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import transformers

from foredraft import Engine
from foredraft.backends.torch.generic import GenericForward
from foredraft.errors import UnsupportedModelError
from matrix import nightly
from model_cases import text_tokens
from torch_cases import greedy, load, reference

Make = Callable[..., Path]
TOKENS = 30
PROMPTS = [text_tokens(5, seed=3), text_tokens(30, seed=5), text_tokens(200, seed=6)]
WINDOW = {"sliding_window": 16}
TOLD = {
    "mistral": WINDOW,
    "qwen2": WINDOW | {"use_sliding_window": True, "max_window_layers": 1},
    "qwen3": WINDOW | {"use_sliding_window": True, "max_window_layers": 1},
    "phi3": WINDOW,
    "gemma2": WINDOW,
    "gemma3": WINDOW,
    "gpt_oss": WINDOW,
}
OFTEN = ("mistral", "gemma3", "gpt_oss")
MASKED: dict[str, dict[str, Any]] = {
    "qwen2_moe": WINDOW | {"use_sliding_window": True, "max_window_layers": 1},
    "llama4": {"attention_chunk_size": 16},
}
"""Only their masks have it."""


@pytest.mark.parametrize(
    ("architecture", "changes", "forward"),
    [
        *(
            pytest.param(name, changes, "transformers", marks=() if name in OFTEN else nightly)
            for name, changes in TOLD.items()
        ),
        *((name, changes, "transformers, with its own cache") for name, changes in MASKED.items()),
    ],
)
def test_greedy_text_is_that_of_generate(
    folder: Make, architecture: str, changes: dict[str, Any], forward: str
) -> None:
    path = folder(architecture, **changes)
    source = reference(path)
    expected = [greedy(source, prompt, TOKENS) for prompt in PROMPTS]
    model = load(path)
    assert model.info.settings["forward"] == forward
    with Engine(model, drafters=[]) as engine:
        results = [engine.generate(prompt, max_tokens=TOKENS) for prompt in PROMPTS]
    assert [list(result.tokens) for result in results] == expected


@pytest.mark.parametrize("architecture", MASKED)
def test_a_window_as_long_as_the_context_hides_nothing(folder: Make, architecture: str) -> None:
    model = load(folder(architecture, **MASKED[architecture]), context_length=16)
    assert model.info.settings["forward"] == "transformers"
    model.close()


@pytest.mark.parametrize(
    ("architecture", "changes"), [("qwen2", TOLD["qwen2"]), ("qwen2_moe", MASKED["qwen2_moe"])]
)
def test_transformers_forgets_a_model_that_is_closed(
    folder: Make, architecture: str, changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    sources = watch_sources(monkeypatch)
    load(folder(architecture, **changes)).close()
    assert_forgotten(sources)


def test_and_one_that_is_refused(folder: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise UnsupportedModelError("not this one")

    sources = watch_sources(monkeypatch)
    monkeypatch.setattr(GenericForward, "check_windows", refuse)
    with pytest.raises(UnsupportedModelError, match="not this one"):
        load(folder("phi3"))
    assert_forgotten(sources)


def watch_sources(monkeypatch: pytest.MonkeyPatch) -> list[weakref.ref[Any]]:
    """The models of transformers that are loaded from now on."""
    found: list[weakref.ref[Any]] = []
    make = transformers.AutoModelForCausalLM.from_pretrained

    def watched(*args: Any, **options: Any) -> Any:
        model, report = make(*args, **options)
        found.append(weakref.ref(model))
        return model, report

    monkeypatch.setattr(transformers.AutoModelForCausalLM, "from_pretrained", watched)
    return found


def assert_forgotten(sources: list[weakref.ref[Any]]) -> None:
    gc.collect()
    assert sources
    assert all(source() is None for source in sources)
