"""The engine over this backend says what `transformers.generate` says, token for token, drafted or not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

import torch_factory
from foredraft import Engine, SamplingParams
from foredraft.protocols import Model
from foredraft.testing import ScriptedDrafter, assert_lossless
from foredraft.types import Draft, Rollback
from matrix import matrix, nightly
from model_cases import text_tokens
from torch_cases import greedy, load, reference

TOKENS = 20
PROMPTS = [text_tokens(5, seed=3), [30, 31, 32] * 9, text_tokens(30, seed=5)]
RECURRENT = set(torch_factory.RECURRENT)
NOT_EXACT = {"bloom", "gpt_oss", "gptj", "minimax", "qwen2_moe", "qwen3_next_experts"}
EXACT = sorted(set(torch_factory.ARCHITECTURES) - NOT_EXACT)
"""Experts, and the attention of BLOOM and GPT-J: computed in ways that depend on how many rows there are."""
PROBED = {*torch_factory.LEAN, "gemma2", "mamba", "falcon_h1", "lfm2", "qwen3_5", "rwkv"}
"""One for each way to compute; the others are probed at night."""

Make = Callable[..., Path]


def guesses(texts: Sequence[Sequence[int]]) -> ScriptedDrafter:
    """Drafts trees around what comes next in one of `texts`: wrong branches beside the right one."""

    def script(tokens: Sequence[int]) -> Draft | None:
        for text in texts:
            if list(text[: len(tokens)]) == list(tokens) and len(text) > len(tokens) + 2:
                a, b, c = text[len(tokens) : len(tokens) + 3]
                wrong = 20 + (a + 1) % 100
                return Draft((wrong, a, wrong, b, c), "scripted", parents=(-1, -1, 1, 1, 3))
        return None

    return ScriptedDrafter(script)


@pytest.mark.parametrize("architecture", torch_factory.ARCHITECTURES)
def test_greedy_text_is_that_of_generate(folder: Make, architecture: str) -> None:
    path = folder(architecture)
    source = reference(path)
    expected = [greedy(source, prompt, TOKENS) for prompt in PROMPTS]
    assert len({tuple(text) for text in expected}) == len(PROMPTS), "the model listens to its prompt"
    model = load(path)
    assert (model.info.settings["forward"] == "lean") == (architecture in torch_factory.LEAN)
    assert (model.capabilities.rollback is Rollback.TRUNCATE) == (architecture not in RECURRENT)
    texts = [[*prompt, *text] for prompt, text in zip(PROMPTS, expected, strict=True)]
    drafter = guesses(texts)
    with Engine(model, drafters=[] if architecture in RECURRENT else [drafter]) as engine:
        results = [engine.generate(prompt, max_tokens=TOKENS) for prompt in PROMPTS]
    assert [list(result.tokens) for result in results] == expected
    if model.capabilities.trees:
        accepted = sum(outcome.accepted for outcome in drafter.outcomes)
        assert accepted > TOKENS, "trees were verified and kept"


@pytest.mark.parametrize(
    "architecture",
    [name if name in PROBED else pytest.param(name, marks=nightly) for name in EXACT],
)
def test_arithmetic_does_not_depend_on_the_batch(folder: Make, architecture: str) -> None:
    model = load(folder(architecture), probe=True, sequences=2, context_length=600)
    assert model.capabilities.batch_invariant, model.capabilities.invariance_note
    assert "8, 250 and 506 tokens" in model.capabilities.invariance_note
    assert model.capabilities.max_rows >= 63
    model.close()


@matrix(
    strength=1,
    architecture=["llama", "qwen3", "gpt2", "gemma2"],
    temperature=[0.0, 0.9],
    concurrent=[False, True],
    ids={"concurrent": ["alone", "concurrent"]},
)
def test_drafts_leave_the_tokens_as_they_are(
    folder: Make, architecture: str, temperature: float, concurrent: bool
) -> None:
    path = folder(architecture)
    params = SamplingParams(temperature=temperature, seed=5, max_tokens=TOKENS, ignore_eos=True)

    def make() -> Model:
        return load(path, sequences=3)

    with Engine(make()) as engine:
        texts = [[*prompt, *engine.generate(prompt, params).tokens] for prompt in PROMPTS]
    origins = assert_lossless(make, lambda _: [guesses(texts)], PROMPTS, params, concurrent=concurrent)
    assert origins["scripted"] > TOKENS


def test_a_repository_is_loaded_by_any_of_its_files_and_drafted_for(folder: Make, tmp_path: Path) -> None:
    path = folder("llama")
    prompt = "the other dog looks at the other dog looks at"
    texts = []
    for file in (path / "config.json", path / "model.safetensors"):
        with Engine.load(
            file, speculate="suffix;recycle", threads=1, gpu_layers=0, cache_dir=tmp_path, remember=False
        ) as engine:
            assert engine.notes == ()
            result = engine.generate(prompt, max_tokens=120, ignore_eos=True)
            assert result.speculation.exact, result.speculation.exact_reason
            assert result.timings.draft_n > 0
            texts.append(list(result.tokens))
            expected = greedy(reference(path), engine.encode(prompt), 120)
    assert texts[0] == texts[1]
    assert texts[0][: len(expected)] == expected
