"""Recurrent and hybrid models: a draft is verified in one forward, and what is rejected leaves no trace."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import torch_factory
from drafter_cases import drafted_from
from foredraft import Engine, SamplingParams
from foredraft.backends.rewind import RewindingModel
from foredraft.backends.torch import states
from foredraft.backends.torch.recurrent import RecurrentModel
from foredraft.cli import diagnosis
from foredraft.errors import BackendError
from foredraft.protocols import Model
from foredraft.testing import assert_lossless
from foredraft.types import Rollback, Rows
from matrix import matrix, nightly
from model_cases import fresh, prefill, same, text_tokens
from torch_cases import greedy, load, reference

Make = Callable[..., Path]
SPARE = 2
TEXT, DRAFT, OTHER = text_tokens(20), text_tokens(12, seed=1), text_tokens(7, seed=2)
FAMILIES = ("mamba", "mamba2", "lfm2", "qwen3_5", "rwkv", "recurrent_gemma", "xlstm")
"""One for each kernel but MiniMax's, which is among experts. LFM2 only convolves."""
HYBRIDS = ("falcon_h1", "granitemoehybrid", "jamba", "qwen3_next", "zamba", "zamba2")


def inner(model: Model) -> RecurrentModel:
    assert isinstance(model, RewindingModel)
    found = model._model
    assert isinstance(found, RecurrentModel)
    return found


# --- rejections ----------------------------------------------------------------------------------------


@matrix(strength=1, architecture=[*FAMILIES, "falcon_h1", "zamba", "zamba2"], bound=[1, 4, 62])
def test_a_rejection_at_every_place_leaves_what_was_accepted(
    folder: Make, architecture: str, bound: int, is_nightly: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside another sequence, of which other rows are rejected in the same round."""
    monkeypatch.setattr(states, "MOST", bound)
    monkeypatch.setattr(states, "SHARE", 1e9)
    model = load(folder(architecture), sequences=3, probe=True, context_length=600)
    assert model.capabilities.rollback_bound == bound
    for kept in range(1, len(DRAFT) + 1) if is_nightly else (1, 6, 7, 8, 10, 11, 12):
        other = len(DRAFT) + 1 - kept
        prefill(model, 0, TEXT)
        prefill(model, 1, OTHER)
        model.forward([Rows(0, len(TEXT), DRAFT, len(DRAFT)), Rows(1, len(OTHER), DRAFT[::-1], len(DRAFT))])
        model.truncate(0, len(TEXT) + kept)
        model.truncate(1, len(OTHER) + other)
        assert model.to_recompute(0) == (kept if len(DRAFT) - kept > bound else 0)
        rows = model.forward([Rows(1, model.length(1), OTHER, 1), Rows(0, model.length(0), OTHER, 1)]).copy()
        held = [*OTHER, *DRAFT[::-1][:other], *OTHER], [*TEXT, *DRAFT[:kept], *OTHER]
        for row, tokens in zip(rows, held, strict=True):
            assert np.array_equal(row, fresh(model, SPARE, tokens)), kept
        model.release(0)
        model.release(1)


def test_rows_can_be_taken_back_one_after_the_other(folder: Make) -> None:
    model = load(folder("lfm2"), sequences=3)
    prefill(model, 0, TEXT)
    model.forward([Rows(0, len(TEXT), DRAFT, len(DRAFT))])
    for kept in range(len(DRAFT) - 1, 0, -1):
        model.truncate(0, len(TEXT) + kept)
        assert model.to_recompute(0) == 0
    assert same(model, prefill(model, 0, OTHER), fresh(model, SPARE, [*TEXT, *DRAFT[:1], *OTHER]))


@pytest.mark.parametrize("architecture", FAMILIES)
def test_what_is_kept_is_never_written_to(folder: Make, architecture: str) -> None:
    """Not by a prompt either, whose states are mostly not kept and made in one place."""
    model = inner(load(folder(architecture)))
    prefill(model, 0, TEXT)
    kept = model.checkpoint(0)
    assert isinstance(kept, tuple)
    before = [state.clone() for state in kept]
    prefill(model, 0, text_tokens(100, seed=4))
    model.forward([Rows(0, model.length(0), DRAFT, 3)])
    assert all(torch.equal(state, copy) for state, copy in zip(kept, before, strict=True))
    model.rewind(0, kept, len(TEXT))
    assert same(model, prefill(model, 0, OTHER), fresh(model, 0, [*TEXT, *OTHER]))


@pytest.mark.parametrize("architecture", ["mamba2", "falcon_h1"])
def test_a_forward_that_fails_leaves_the_states(
    folder: Make, architecture: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half of the layers have computed their part by then."""
    model = load(folder(architecture), sequences=3)
    prefill(model, 0, TEXT)
    source = inner(model)._forward._forward._source  # type: ignore[attr-defined]
    last = [module for module in source.modules() if hasattr(module, "out_proj")][-1]

    def fail(_rows: Any) -> Any:
        raise RuntimeError("no memory")

    with monkeypatch.context() as patch:
        patch.setattr(last.out_proj, "forward", fail)
        with pytest.raises(BackendError, match="no memory"):
            model.forward([Rows(0, len(TEXT), DRAFT, len(DRAFT))])
    assert model.length(0) == len(TEXT)
    assert same(model, prefill(model, 0, OTHER), fresh(model, SPARE, [*TEXT, *OTHER]))


# --- how many states are kept --------------------------------------------------------------------------


@pytest.mark.parametrize("sequences", [1, 4])
@pytest.mark.parametrize("architecture", FAMILIES)
def test_as_many_states_are_kept_as_are_small_beside_the_weights(
    folder: Make, architecture: str, sequences: int
) -> None:
    model = load(folder(architecture), sequences=sequences)
    kept, weights = model.capabilities.rollback_bound, model.info.size_bytes
    prefill(model, 0, TEXT)
    held = inner(model).checkpoint(0)
    assert isinstance(held, tuple)
    state = sum(part.numel() * part.element_size() for part in held) * sequences
    assert 1 <= kept <= states.MOST
    assert kept == 1 or kept * state <= states.SHARE * weights
    assert kept == states.MOST or (kept + 2) * state > 0.9 * states.SHARE * weights, "no fewer than that"
    assert f"{kept} recurrent states are kept" in model.info.settings["rollback"]


@pytest.mark.parametrize("architecture", ["qwen3_next_experts", "minimax"])
def test_mixtures_of_experts_are_said_not_to_be_exact(folder: Make, architecture: str) -> None:
    model = load(folder(architecture), probe=True, context_length=600)
    assert model.capabilities.rollback is Rollback.SNAPSHOT
    assert not model.capabilities.batch_invariant
    assert "depends on the batch size" in model.capabilities.invariance_note


@pytest.mark.parametrize("architecture", ["mamba", "falcon_mamba"])
def test_logits_in_fp32_do_not_hide_that_a_model_computes_in_bf16(folder: Make, architecture: str) -> None:
    """They are as far from transformers' as the rounding of bf16 makes them."""
    assert load(folder(architecture), "bf16").info.settings["forward"] == "transformers, recurrent"


# --- texts ---------------------------------------------------------------------------------------------


@matrix(
    strength=1,
    architecture=[*FAMILIES, *HYBRIDS],
    temperature=[0.0, 0.8],
    concurrent=[False, True],
    ids={"concurrent": ["alone", "concurrent"]},
)
def test_speculation_changes_nothing(
    folder: Make, architecture: str, temperature: float, concurrent: bool
) -> None:
    params = SamplingParams(temperature=temperature, seed=5, max_tokens=24, ignore_eos=True)
    prompts = [text_tokens(count, seed=count) for count in (3, 17, 40)]
    path = folder(architecture)
    with Engine(load(path), drafters=()) as engine:
        texts = [[*prompt, *engine.generate(prompt, params).tokens] for prompt in prompts]

    def model() -> Model:
        return load(path, sequences=3)

    origins = assert_lossless(
        model, lambda _: [drafted_from(texts, 1)], prompts, params, concurrent=concurrent
    )
    assert origins["scripted"] > 15


@pytest.mark.parametrize(
    "architecture",
    [
        *("mamba", "lfm2", "falcon_h1", "rwkv"),
        *(pytest.param(name, marks=nightly) for name in ("qwen3_5", "zamba2", "recurrent_gemma", "xlstm")),
    ],
)
def test_a_conversation_goes_on_from_what_is_held(folder: Make, architecture: str) -> None:
    """Also where the next prompt leaves out what followed the last one, as if it were reasoning."""
    path = folder(architecture)
    params = SamplingParams(max_tokens=12, ignore_eos=True)
    first = text_tokens(280, seed=7)
    with Engine(load(path, sequences=2, context_length=600), drafters=[drafted_from([], 0)]) as engine:
        answer = engine.generate(first, params).tokens
        goes_on = [*first, *answer, *TEXT]
        leaves_out = [*first[:-2], *OTHER]
        answers = {}
        for prompt in (goes_on, leaves_out):
            result = engine.generate(prompt, params)
            assert result.usage.cached_tokens > 256
            answers[tuple(prompt)] = result.tokens
    for held, tokens in answers.items():
        with Engine(load(path, context_length=600), drafters=()) as engine:
            assert engine.generate(list(held), params).tokens == tokens


def test_auto_speculates_and_says_how_rows_are_taken_back(folder: Make, tmp_path: Path) -> None:
    path = folder("mamba2")
    model = load(path)
    unloaded = Engine(model)
    unloaded.set_speculation("auto")
    assert diagnosis.speculation(unloaded).runs
    with Engine.load(
        path / "config.json", speculate="suffix", threads=1, gpu_layers=0, cache_dir=tmp_path, remember=False
    ) as engine:
        result = engine.generate(TEXT * 4, SamplingParams(max_tokens=80, ignore_eos=True))
    assert result.speculation.active
    assert result.speculation.exact, result.speculation.exact_reason
    again = f"are computed again if more than {model.capabilities.rollback_bound} are rejected"
    assert any(again in note for note in result.speculation.notes)


@pytest.mark.parametrize("architecture", ["mamba", "granitemoehybrid"])
def test_a_foreign_snapshot_is_refused(folder: Make, architecture: str) -> None:
    model = load(folder(architecture), sequences=2)
    prefill(model, 0, TEXT)
    with pytest.raises(BackendError, match="not a snapshot"):
        model.restore(0, b"")
    assert model.length(0) == 0
    assert same(model, prefill(model, 0, OTHER), fresh(model, 1, OTHER))


def test_every_architecture_made_here_has_its_own_kernels(folder: Make) -> None:
    for architecture in torch_factory.RECURRENT:
        assert load(folder(architecture)).info.settings["forward"] == "transformers, recurrent"


def test_zamba2_keeps_to_its_shortest_time_step(folder: Make) -> None:
    """transformers does for a text at once; decoding row by row, it leaves it out."""
    path = folder("zamba2", time_step_min=0.001)
    source, expected = reference(path), list(TEXT)
    with torch.inference_mode():
        for _ in range(24):
            expected.append(
                int(source(input_ids=torch.tensor([expected]), use_cache=False).logits[0, -1].argmax())
            )
    assert greedy(source, TEXT, 24) != expected[len(TEXT) :], "and here that shows"
    with Engine(load(path), drafters=()) as engine:
        assert list(engine.generate(TEXT, max_tokens=24, ignore_eos=True).tokens) == expected[len(TEXT) :]
