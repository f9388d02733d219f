"""Texts longer than what sees or drafts them: a sliding window, a draft model with a shorter context."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from foredraft import Engine
from foredraft.drafters.draft_model import create
from foredraft.sampling.coupled import CoupledSampler
from foredraft.testing import FakeModel, drafter_context, markov_logits
from gguf_windows import tiny_gemma3

WINDOW, VOCAB, SHORT = 32, 24, 64


def a_gguf(folder: Path) -> Path:
    return tiny_gemma3(folder / "window.gguf", window=WINDOW, layers=6, mixing=0.15)


def a_folder(folder: Path) -> Path:
    pytest.importorskip("torch")
    import torch_factory

    return torch_factory.make_model(folder / "gemma3", "gemma3")


TEXT = [5 + number % 23 for number in range(4 * WINDOW)]
"""It repeats itself, so that there are drafts."""


def conversation(engine: Engine, temperature: float) -> list[tuple[list[int], int, int]]:
    """(tokens, cached, drafted) of three turns, each longer than the window: the second goes on from the
    first, the third leaves it in its middle.
    """
    found: list[tuple[list[int], int, int]] = []
    prompt = TEXT
    for place in range(3):
        options: dict[str, Any] = {"temperature": temperature, "seed": 7, "ignore_eos": True}
        answer = engine.generate(prompt, max_tokens=40, **options)
        tokens = list(answer.tokens)
        found.append((tokens, answer.usage.cached_tokens, answer.timings.draft_n))
        prompt = [*prompt, *tokens, 9, 10] if place == 0 else [*prompt[:-30], 11, 12, 13]
    return found


@pytest.mark.parametrize("make", [a_gguf, a_folder])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_a_window_changes_nothing(make: Callable[[Path], Path], temperature: float, tmp_path: Path) -> None:
    path = make(tmp_path)
    found = {}
    for speculate in ("off", "suffix;recycle"):
        options: dict[str, Any] = {"cache_dir": tmp_path / "cache", "remember": False}
        with Engine.load(path, speculate=speculate, threads=1, context_length=512, **options) as engine:
            found[speculate] = conversation(engine, temperature)
    plain, drafted = found["off"], found["suffix;recycle"]
    assert [tokens for tokens, _, _ in drafted] == [tokens for tokens, _, _ in plain]
    assert [cached for _, cached, _ in drafted] == [cached for _, cached, _ in plain]
    assert drafted[1][1] >= len(TEXT) > WINDOW
    assert sum(count for _, _, count in drafted) > 0


def test_a_draft_model_with_a_shorter_context_drafts_until_that_is_full() -> None:
    logits, notes = markov_logits(VOCAB), list[str]()
    texts = []
    for drafting in (False, True):
        model = FakeModel(VOCAB, logits=logits, context_length=512)
        small = FakeModel(VOCAB, logits=logits, context_length=SHORT)
        context = replace(
            drafter_context(model),
            sampler=CoupledSampler(VOCAB, frozenset()),
            load_model=lambda path, *, sequences, context_length: small,  # noqa: B023
            notice=notes.append,
        )
        drafters = [create(context, {"model": "small"})] if drafting else []
        with Engine(model, drafters=drafters) as engine:
            answer = engine.generate([1, 2, 3], max_tokens=3 * SHORT, ignore_eos=True)
            texts.append(answer.tokens)
            before = answer.timings.draft_n
            later = engine.generate([*([4, 5] * SHORT), 6], max_tokens=8, ignore_eos=True)
            assert later.timings.draft_n == 0
    assert texts[0] == texts[1]
    assert SHORT // 2 < before < SHORT
    assert notes == [f"fake drafts up to {SHORT} tokens of a text: it holds no more"]
