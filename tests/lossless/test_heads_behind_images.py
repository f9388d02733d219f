"""Heads of models that see: no token differs, and a head that is right is accepted behind images as well."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gguf_dflash
import gguf_heads
import gguf_vision
import seeing_factory
import torch_heads
from foredraft import Engine, SamplingParams
from foredraft.images import Image
from foredraft.types import Completion, Message

GREEDY = SamplingParams(max_tokens=24, ignore_eos=True)
SEEDED = SamplingParams(max_tokens=24, ignore_eos=True, temperature=0.8, seed=7)


def picture(seed: int, height: int = 70, width: int = 100) -> dict[str, Any]:
    blocks = np.random.default_rng(seed).integers(0, 256, (4, 4, 3), np.uint8)
    pixels = np.kron(blocks, np.ones((-(-height // 4), -(-width // 4), 1), np.uint8))
    return {"type": "image", "image": Image(pixels[:height, :width])}


def conversations() -> list[list[Message]]:
    """Images at the beginning, at the end, in two turns, and none."""
    text = {"type": "text", "text": "what is this? again and again"}
    first = {"role": "user", "content": [picture(1), text]}
    said = {"role": "assistant", "content": "again and again"}
    return [
        [first],
        [
            {"role": "user", "content": [picture(1), text]},
            said,
            {"role": "user", "content": [text, picture(2)]},
        ],
        [{"role": "user", "content": [text, picture(3, 90, 80), picture(2)]}],
        [{"role": "user", "content": "no image again and again"}],
    ]


def _llava(mixing: float, head: Callable[[Path, Path | None], object]) -> Callable[[Path], tuple[Path, Path]]:
    def make(folder: Path) -> tuple[Path, Path]:
        kind = "q8_0" if mixing else "f32"
        target = gguf_vision.llava(folder, layers=4, mixing=mixing, weight_type=kind)  # type: ignore[arg-type]
        head(folder / "head.gguf", None if mixing else target)
        return target, folder / "head.gguf"

    return make


def _torch(kind: str) -> Callable[[Path], tuple[Path, Path]]:
    def make(folder: Path) -> tuple[Path, Path]:
        target = seeing_factory.make_seeing_model(folder / "model", kind, layers=6)
        known = sorted({*range(0, 300, 3), 40, 41})
        tensors = torch_heads.eagle3_tensors(known=known)
        changes = {"vocab_size": seeing_factory.VOCAB}
        return target, torch_heads.write_specforge(folder / "head", tensors, **changes)

    return make


CASES: dict[str, Callable[[Path], tuple[Path, Path | None]]] = {
    "llava": _llava(0.5, lambda path, right: gguf_heads.tiny_eagle3(path, right=right)),
    "llava-alone": _llava(0.5, lambda path, right: gguf_heads.tiny_eagle3(path, right=right, window=1)),
    "llava-block": _llava(0.5, lambda path, right: gguf_dflash.tiny_dflash(path, right=right, depth=3)),
    "qwen35-own": lambda folder: (gguf_vision.qwen35(folder), None),
    "llava-right": _llava(0.0, lambda path, right: gguf_heads.tiny_eagle3(path, right=right)),
    "qwen35-own-right": lambda folder: (gguf_vision.qwen35(folder, mixing=0.0, weight_type="f32"), None),
    "torch-qwen2_vl": _torch("qwen2_vl"),
    "torch-gemma3": _torch("gemma3"),
}


@pytest.fixture(scope="module", params=CASES)
def case(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, Callable[[str], Engine]]:
    folder = tmp_path_factory.mktemp("seeing-heads") / request.param
    if request.param.startswith("torch"):
        folder.mkdir()
    target, head = CASES[request.param](folder)
    setting = "heads" if head is None else f"heads:model={head}"

    def load(speculate: str) -> Engine:
        return Engine.load(
            target,
            speculate=speculate or setting,
            sequences=4,
            threads=1,
            gpu_layers=0,
            context_length=512,
            cache_dir=folder,
            remember=False,
        )

    return request.param, load


def answers(engine: Engine, params: SamplingParams, *, together: bool) -> list[Completion]:
    while engine._scheduler.cache.evict():
        pass
    if together:
        return engine.run([engine.add(messages, params) for messages in conversations()])
    return [engine.generate(messages, params) for messages in conversations()]


def test_no_token_differs(case: tuple[str, Callable[[str], Engine]]) -> None:
    name, load = case
    with load("off") as plain, load("") as drafting:
        for params in (GREEDY, SEEDED):
            expected = [one.tokens for one in answers(plain, params, together=False)]
            assert len(set(expected)) == len(expected) or "right" in name
            for together in (False, True):
                found = answers(drafting, params, together=together)
                assert [one.tokens for one in found] == expected, (params, together)
                assert found[0].speculation.drafters.keys() == {"heads"}, drafting.notes
                told = [one.speculation.drafters["heads"] for one in found]
                assert all(one.drafted for one in told)
                if "right" in name and params is GREEDY:
                    assert all(one.accepted == one.drafted for one in told)
            again = drafting.generate(conversations()[1], params)
            assert again.tokens == expected[1]
            assert again.usage.cached_tokens > again.usage.prompt_tokens - 10 or "qwen35" in name
