"""LoRA adapters of models that see: no token differs with drafts, in company, and behind cached images."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import gguf_adapters
import gguf_vision
import peft_adapters
import seeing_factory
from foredraft import Engine, SamplingParams
from foredraft.errors import UnsupportedModelError
from foredraft.types import Completion, Message

GREEDY = SamplingParams(max_tokens=16, ignore_eos=True)
SEEDED = SamplingParams(max_tokens=16, ignore_eos=True, temperature=0.8, seed=7)
SPECULATION = "suffix;recycle;ngram-simple:n=2,m=6"
ADAPTERS = ("one", "", "two", "one")


def conversations() -> list[list[Message]]:
    """The same image four times, in one prompt beside another; of one prompt two adapters."""
    image, other = ({"type": "image", "image": seeing_factory.picture(seed)} for seed in (1, 2))
    text = {"type": "text", "text": "what is this? again and again and again"}
    return [
        [{"role": "user", "content": [image, text]}],
        [{"role": "user", "content": [image, text]}],
        [{"role": "user", "content": [image, text]}],
        [{"role": "user", "content": [image, other, text]}],
    ]


def _gguf(make: Callable[[Path], Path]) -> Callable[[Path], tuple[Path, dict[str, str]]]:
    def made(folder: Path) -> tuple[Path, dict[str, str]]:
        model = make(folder / "model")
        for seed, (name, rank) in enumerate((("one", 4), ("two", 24)), 1):
            gguf_adapters.lora(folder / f"{name}.gguf", model, rank=rank, seed=seed, strength=0.7)
        return model, {"one": str(folder / "one.gguf"), "two": f"{folder / 'two.gguf'}:0.5"}

    return made


def _torch(kind: str, stored: str) -> Callable[[Path], tuple[Path, dict[str, str]]]:
    """`stored`: what the names of its text model's layers begin with in the file."""

    def made(folder: Path) -> tuple[Path, dict[str, str]]:
        model = seeing_factory.make_seeing_model(folder / "model", kind)
        targets = rf"{stored}layers.*_proj\.weight"
        renamed = stored, "model.language_model."
        for seed, name in enumerate(("one", "two"), 1):
            peft_adapters.peft(folder / name, model, seed=seed, targets=targets, renamed=renamed)
        return model, {"one": str(folder / "one"), "two": f"{folder / 'two'}:0.5"}

    return made


CASES: dict[str, Callable[[Path], tuple[Path, dict[str, str]]]] = {
    "qwen2vl": _gguf(gguf_vision.qwen2vl),
    "gemma3": _gguf(gguf_vision.gemma3),
    "torch-qwen2_vl": _torch("qwen2_vl", "model."),
    "torch-gemma3": _torch("gemma3", "language_model.model."),
}


@pytest.fixture(scope="module", params=CASES)
def engine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    folder = tmp_path_factory.mktemp("seeing-adapters")
    model, adapters = CASES[request.param](folder)
    with Engine.load(
        model,
        adapters=adapters,
        speculate="off",
        context_length=512,
        sequences=4,
        threads=1,
        gpu_layers=0,
        cache_dir=folder,
        remember=False,
    ) as engine:
        yield engine


def fresh(engine: Engine) -> None:
    while engine._scheduler.cache.evict():
        pass


def alone(engine: Engine, params: SamplingParams) -> list[Completion]:
    found = []
    for messages, adapter in zip(conversations(), ADAPTERS, strict=True):
        fresh(engine)
        found.append(engine.generate(messages, params, adapter=adapter))
        assert not found[-1].usage.cached_tokens
    return found


def test_no_token_differs(engine: Engine) -> None:
    drafted = 0
    for params in (GREEDY, SEEDED):
        engine.set_speculation("off")
        expected = [one.tokens for one in alone(engine, params)]
        assert len(set(expected)) == len(expected)
        for speculate in ("off", SPECULATION):
            engine.set_speculation(speculate)
            assert [one.tokens for one in alone(engine, params)] == expected
            fresh(engine)
            requests = [
                engine.add(messages, params, adapter=adapter)
                for messages, adapter in zip(conversations(), ADAPTERS, strict=True)
            ]
            found = engine.run(requests)
            assert [one.tokens for one in found] == expected
            drafted += sum(one.timings.draft_n for one in found)
    assert drafted > 20


def test_a_cached_image_is_that_of_its_adapter(engine: Engine) -> None:
    """Its rows are the same for all adapters, its cells are not."""
    engine.set_speculation(SPECULATION)
    expected = [one.tokens for one in alone(engine, GREEDY)]
    fresh(engine)
    for turn in range(2):
        for messages, adapter, tokens in zip(conversations(), ADAPTERS, expected, strict=True):
            found = engine.generate(messages, GREEDY, adapter=adapter)
            assert found.tokens == tokens, (turn, adapter)
            if turn == 0 and messages == conversations()[0]:
                assert not found.usage.cached_tokens
            if turn:
                assert found.usage.cached_tokens > 10


def test_an_adapter_of_what_a_model_sees_with_is_refused(tmp_path: Path) -> None:
    """Images are encoded without adapters: it would be left out in silence."""
    model = seeing_factory.make_seeing_model(tmp_path / "model", "llava")
    adapter = peft_adapters.peft(
        tmp_path / "one",
        model,
        targets=r"vision_tower\..*q_proj\.weight",
        renamed=("vision_tower.", "model.vision_tower."),
    )
    with pytest.raises(UnsupportedModelError, match=r"vision_tower\.\S+, by which the model sees"):
        Engine.load(model, adapters={"one": str(adapter)}, cache_dir=tmp_path, gpu_layers=0)
