"""Heads of GGUF models draft for whole answers: no token changes, and those that are right are accepted."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import gguf_dflash
import gguf_factory
import gguf_heads
import gguf_hybrids
import gguf_mimo
from foredraft import Engine, SamplingParams
from foredraft.backends.llamacpp import BACKEND
from foredraft.config import ModelOptions
from foredraft.drafters.heads import HeadsDrafter
from foredraft.protocols import Drafter, Model
from foredraft.sampling.coupled import CoupledSampler
from foredraft.testing import assert_lossless
from matrix import matrix
from model_cases import text_tokens

PROMPTS = [text_tokens(12), text_tokens(25, seed=1), [30, 31, 32] * 5, text_tokens(7, seed=2)]
TOKENS = 24
VOCABULARY = 384

Files = Callable[[str], tuple[Path, Path | None]]


def _llama(mixing: float, **options: Any) -> Callable[[Path, Path], object]:
    def make(target: Path, head: Path) -> None:
        gguf_factory.tiny_llama(target, vocab=VOCABULARY, layers=4, mixing=mixing, weight_type="f32")
        right = None if mixing else target
        gguf_heads.tiny_eagle3(head, vocab=VOCABULARY, right=right, **options)

    return make


def _block(cycle: int, **options: Any) -> Callable[[Path, Path], object]:
    """A random block-diffusion head, or one that knows its target, which repeats `cycle` tokens."""

    def make(target: Path, head: Path) -> None:
        if cycle:
            gguf_dflash.tiny_cycles(target, cycle, vocab=VOCABULARY)
        else:
            gguf_factory.tiny_llama(target, vocab=VOCABULARY, layers=4, mixing=0.5, weight_type="f32")
        gguf_dflash.tiny_dflash(head, vocab=VOCABULARY, right=target if cycle else None, **options)

    return make


def _block_of_hybrid(target: Path, head: Path) -> None:
    """Of a model with a recurrent state and with M-RoPE, which the head has, too."""
    gguf_hybrids.tiny_qwen35(target, vocab=VOCABULARY, mixing=0.5)
    gguf_dflash.tiny_dflash(head, vocab=VOCABULARY, layers=(1, 3, 2), sections=True)


CASES: dict[str, Callable[[Path, Path], object]] = {
    "llama": _llama(0.5, chosen=range(5, 300)),
    "llama-alone": _llama(0.5, window=1),
    "block": _block(0, depth=3, window=6),
    "block-markov": _block(0, kind="markov", chosen=range(5, 300)),
    "block-selector": _block(0, kind="selector"),
    "block-hybrid": _block_of_hybrid,
    "own-hybrid": lambda target, _: gguf_hybrids.tiny_qwen35(target, following=1, mixing=0.5),
    "own-chained": lambda target, _: gguf_mimo.tiny_mimo2(target, mixing=0.5),
    "right": _llama(0.0),
    "right-alone": _llama(0.0, window=1),
    "block-right": _block(1),
    "block-right-markov": _block(7, kind="markov"),
    "block-right-markov-after": _block(6, kind="markov", after=True),
    "own-right-hybrid": lambda target, _: gguf_hybrids.tiny_qwen35(
        target, following=1, mixing=0.0, weight_type="f32"
    ),
    "own-right-chained": lambda target, _: gguf_mimo.tiny_mimo2(target, mixing=0.0),
}
"""EAGLE-3 heads, block-diffusion heads, and models with layers of their own."""


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Files:
    """A target and a head, made once."""
    root = tmp_path_factory.mktemp("gguf-heads")

    def make(name: str) -> tuple[Path, Path | None]:
        target, head = root / f"{name}.gguf", root / f"{name}-head.gguf"
        if not target.exists():
            CASES[name](target, head)
        return target, None if name.startswith("own") else head

    return make


def target_of(path: Path, head: Path | None) -> Model:
    watch = BACKEND.features_for(path, head)
    return BACKEND.load(
        path,
        ModelOptions(
            context_length=256, sequences=4, threads=1, gpu_layers=0, watch=watch, cache_dir=path.parent
        ),
    )


def drafter_of(model: Model, head: Path | None, **options: Any) -> Drafter:
    loaded = model.load_head(head, sequences=model.capabilities.sequences)
    ends = model.tokenizer.end_tokens
    sampler = CoupledSampler(model.info.vocab_size, ends)
    return HeadsDrafter(loaded, sampler, end_tokens=ends, **options)


@matrix(
    strength=2,
    name=[
        "llama",
        "llama-alone",
        "block",
        "block-markov",
        "block-selector",
        "block-hybrid",
        "own-hybrid",
        "own-chained",
    ],
    temperature=[0.0, 0.9],
    concurrent=[False, True],
    rows=[512, 9],
)
def test_a_random_head_changes_no_token(
    made: Files, name: str, temperature: float, concurrent: bool, rows: int
) -> None:
    path, head = made(name)
    params = SamplingParams(temperature=temperature, seed=3, max_tokens=TOKENS, ignore_eos=True)
    assert_lossless(
        lambda: target_of(path, head),
        lambda model: [drafter_of(model, head, window=rows)],
        PROMPTS,
        params,
        concurrent=concurrent,
    )


@pytest.mark.parametrize("name", [name for name in CASES if "right" in name])
def test_a_head_that_is_right_is_always_accepted(made: Files, name: str) -> None:
    path, head = made(name)
    model = target_of(path, head)
    with Engine(model, drafters=[drafter_of(model, head, max_tokens=6)]) as engine:
        params = SamplingParams(max_tokens=36, ignore_eos=True)
        speculation = engine.generate(PROMPTS[1], params).speculation
    told = speculation.drafters["heads"]
    assert told.accepted == told.drafted > 0
