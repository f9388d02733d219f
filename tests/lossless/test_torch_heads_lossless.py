"""Heads on torch draft for whole answers: no token changes, and those that know the target are right."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import torch_factory
import torch_heads
from foredraft import Engine, SamplingParams
from foredraft.backends.torch import BACKEND
from foredraft.drafters.heads import HeadsDrafter
from foredraft.protocols import Drafter, Model
from foredraft.sampling.coupled import CoupledSampler
from foredraft.testing import assert_lossless
from matrix import matrix
from model_cases import text_tokens
from torch_cases import load

PROMPTS = [text_tokens(12), text_tokens(25, seed=1), [30, 31, 32] * 5, text_tokens(7, seed=2)]
TOKENS = 24
KNOWN = sorted({*range(0, 300, 3), 40, 41})


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Path, Path | None]]:
    """A target and a head, made once: of random weights, or right by construction."""
    root = tmp_path_factory.mktemp("heads")

    def make(name: str) -> tuple[Path, Path | None]:
        target, head = root / name, root / f"{name}-head"
        own = name.partition("-")[0] in torch_heads.MTP
        if not target.exists():
            CASES[name](target, head)
        return target, None if own else head

    return make


def _random(architecture: str, **changes: Any) -> Callable[[Path, Path], None]:
    def make(target: Path, head: Path) -> None:
        torch_factory.make_model(target, architecture, num_hidden_layers=4, tie_word_embeddings=False)
        torch_heads.write_specforge(head, torch_heads.eagle3_tensors(known=KNOWN), **changes)

    return make


def _knowing(target: Path, head: Path) -> None:
    torch_heads.make_forgetful(target)
    torch_heads.write_knowing(head, target)


CASES: dict[str, Callable[[Path, Path], object]] = {
    "llama": _random("llama"),
    "qwen3": _random("qwen3", foredraft_window=1),
    "gemma2": _random("gemma2"),
    "olmo_hybrid": _random("olmo_hybrid"),
    "qwen3_5": lambda target, _: torch_heads.make_mtp(target, "qwen3_5"),
    "knowing": _knowing,
    "qwen3_5-knowing": lambda target, _: torch_heads.make_mtp(target, "qwen3_5", knowing=True),
}
"""EAGLE-3 heads of the lean forward, transformers' and a hybrid, and hybrids with a layer of their own."""


def target_of(path: Path, head: Path | None) -> Model:
    watch = BACKEND.features_for(path, head)
    return load(path, "fp32", sequences=4, watch=watch, probe=True)


def drafter_of(model: Model, head: Path | None, *, trees: bool, **options: Any) -> Drafter:
    loaded = model.load_head(head, sequences=model.capabilities.sequences)
    ends = model.tokenizer.end_tokens
    sampler = CoupledSampler(model.info.vocab_size, ends)
    return HeadsDrafter(loaded, sampler, end_tokens=ends, trees=trees, **options)


@matrix(
    strength=2,
    name=["llama", "qwen3", "gemma2", "olmo_hybrid", "qwen3_5"],
    temperature=[0.0, 0.9],
    concurrent=[False, True],
    rows=[512, 9],
)
def test_a_random_head_changes_no_token(
    made: Callable[[str], tuple[Path, Path | None]],
    name: str,
    temperature: float,
    concurrent: bool,
    rows: int,
) -> None:
    path, head = made(name)
    params = SamplingParams(temperature=temperature, seed=3, max_tokens=TOKENS, ignore_eos=True)
    assert_lossless(
        lambda: target_of(path, head),
        lambda model: [drafter_of(model, head, trees=model.capabilities.trees, window=rows)],
        PROMPTS,
        params,
        concurrent=concurrent,
    )


@pytest.mark.parametrize("name", ["knowing", "qwen3_5-knowing"])
@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_a_head_that_knows_the_target_is_always_right(
    made: Callable[[str], tuple[Path, Path | None]], name: str, temperature: float
) -> None:
    """Greedy, and sampled with the noise of the target's own choice: the distributions are the same."""
    path, head = made(name)
    model = target_of(path, head)
    with Engine(model, drafters=[drafter_of(model, head, trees=False, max_tokens=6)]) as engine:
        params = SamplingParams(temperature=temperature, seed=5, max_tokens=36, ignore_eos=True)
        speculation = engine.generate(PROMPTS[1], params).speculation
    told = speculation.drafters["heads"]
    assert told.accepted == told.drafted > 0
    assert speculation.acceptance_length is not None
    assert speculation.acceptance_length > 4


@pytest.mark.parametrize(
    ("name", "speculate"),
    [
        ("knowing", "heads:model={head}"),
        ("knowing", "auto"),
        ("qwen3_5-knowing", "heads"),
        ("qwen3_5-knowing", "auto"),
    ],
)
def test_an_engine_finds_the_head_of_its_model(
    made: Callable[[str], tuple[Path, Path | None]], tmp_path: Path, name: str, speculate: str
) -> None:
    """A folder that is named, or lies beside the model, or is a layer of the model's own."""
    path, head = made(name)
    if head is not None:
        beside = tmp_path / f"{path.name}-eagle3"
        shutil.copytree(head, beside)
        path = shutil.copytree(path, tmp_path / path.name)
        speculate = speculate.format(head=beside)
    texts = []
    for setting in ("off", speculate):
        options: dict[str, Any] = {
            "context_length": 256,
            "gpu_layers": 0,
            "threads": 1,
            "cache_dir": tmp_path,
        }
        with Engine.load(path, speculate=setting, **options) as engine:
            answer = engine.generate(PROMPTS[1], SamplingParams(max_tokens=60, ignore_eos=True))
            texts.append(answer.tokens)
            features, drafters = engine.model.capabilities.features, engine.setup.drafters.names
    assert texts[0] == texts[1]
    assert answer.speculation.exact
    assert features == (("next",) if head is None else ("layer:1", "layer:2", "layer:3"))
    assert "heads" in drafters
    if speculate != "auto":  # which may find that nothing pays here
        assert answer.speculation.drafters["heads"].accepted > 20
