"""Models that see: the same tokens with drafts and without, alone and beside others, cached or not."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

from drafter_cases import drafted_from
from foredraft import registry
from foredraft.engine.engine import Engine
from foredraft.images import Image
from foredraft.types import Message, SamplingParams
from gguf_factory import tiny_llama
from gguf_vision import gemma3, llava, qwen2vl

FAMILIES: dict[str, Callable[[Path], Path]] = {"qwen2vl": qwen2vl, "gemma3": gemma3, "llava": llava}
NEED_MORE = {"heads", "draft-model"}
"""Drafters that need a second file."""


def picture(seed: int, height: int = 70, width: int = 100) -> Image:
    """Blocks of colours: noise would be grey once it is scaled down."""
    blocks = np.random.default_rng(seed).integers(0, 256, (4, 4, 3), np.uint8)
    return Image(np.kron(blocks, np.ones((-(-height // 4), -(-width // 4), 1), np.uint8))[:height, :width])


def about(*images: Image, text: str = "What is it?") -> list[Message]:
    parts = [{"type": "image", "image": image} for image in images]
    return [{"role": "user", "content": [*parts, {"type": "text", "text": text}]}]


PROMPTS: list[list[Message]] = [
    about(picture(1)),
    about(picture(2), picture(1), text="Which is larger, the first or the second?"),
    [{"role": "user", "content": "Say a word. " * 5}],
    about(picture(3, 170, 160)),  # more rows than a chunk has
]
GREEDY = SamplingParams(max_tokens=30, ignore_eos=True)
SEEDED = SamplingParams(max_tokens=30, ignore_eos=True, temperature=0.8, seed=7)


@pytest.fixture(scope="module", params=FAMILIES)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return FAMILIES[request.param](tmp_path_factory.mktemp("vision") / request.param)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


def load(model: Path, cache: Path, *, speculate: str = "off", sequences: int = 4) -> Engine:
    return Engine.load(
        model, speculate=speculate, sequences=sequences, threads=1, cache_dir=cache, remember=False
    )


@pytest.fixture(scope="module")
def engine(model: Path, cache: Path) -> Iterator[Engine]:
    with load(model, cache) as engine:
        yield engine


def fresh(engine: Engine) -> None:
    """Forget all kept prefixes."""
    while engine._scheduler.cache.evict():
        pass


def alone(engine: Engine, prompt: list[Message], params: SamplingParams) -> list[int]:
    fresh(engine)
    result = engine.generate(prompt, params)
    assert not result.usage.cached_tokens
    assert not result.error
    return list(result.tokens)


def together(engine: Engine, prompts: Sequence[list[Message]], params: SamplingParams) -> list[list[int]]:
    fresh(engine)
    requests = [engine.add(prompt, params) for prompt in prompts]
    return [list(result.tokens) for result in engine.run(requests)]


@pytest.mark.parametrize("params", [GREEDY, SEEDED], ids=["greedy", "seeded"])
def test_drafts_and_company_change_nothing(engine: Engine, params: SamplingParams) -> None:
    expected = [alone(engine, prompt, params) for prompt in PROMPTS]
    assert len({tuple(tokens) for tokens in expected}) == len(PROMPTS)
    assert together(engine, PROMPTS, params) == expected
    whole = [[*engine.encode(prompt), *tokens] for prompt, tokens in zip(PROMPTS, expected, strict=True)]
    drafting = Engine(engine.model, drafters=[drafted_from(whole, seed=3)])
    assert [alone(drafting, prompt, params) for prompt in PROMPTS] == expected
    assert together(drafting, PROMPTS, params) == expected
    fresh(drafting)
    result = drafting.generate(PROMPTS[0], params)
    assert result.usage.accepted_prediction_tokens > 0
    assert result.speculation.exact, result.speculation.exact_reason
    fresh(drafting)


def test_another_image_is_another_answer(engine: Engine) -> None:
    answers = {tuple(alone(engine, about(picture(seed)), GREEDY)) for seed in range(4)}
    assert len(answers) == 4


@pytest.mark.parametrize("params", [GREEDY, SEEDED], ids=["greedy", "seeded"])
def test_a_cached_prefix_changes_nothing(engine: Engine, params: SamplingParams) -> None:
    """Also one that ends right before or right behind an image, and one that another sequence holds."""
    first, second = about(picture(4), text="What is it?"), about(picture(4), text="Where is it?")
    other = about(picture(4), picture(5))
    expected = [alone(engine, prompt, params) for prompt in (first, second, other)]
    fresh(engine)
    results = [engine.generate(prompt, params) for prompt in (first, second, other, first, second, other)]
    assert [list(result.tokens) for result in results] == expected * 2
    rows = engine.encode(first).count(engine.model.vision.placeholder)  # type: ignore[union-attr]
    assert all(result.usage.cached_tokens > rows for result in results[1:])
    turns: list[Message] = [
        *first,
        {"role": "assistant", "content": "A word."},
        {"role": "user", "content": "And then?"},
    ]
    follows = engine.generate(turns, params)
    assert follows.usage.cached_tokens > rows
    assert list(follows.tokens) == alone(engine, turns, params)


def test_images_that_differ_share_nothing(engine: Engine) -> None:
    fresh(engine)
    engine.generate(about(picture(6)), GREEDY)
    other = engine.generate(about(picture(7)), GREEDY)
    before = engine.encode(about(picture(7))).index(engine.model.vision.placeholder)  # type: ignore[union-attr]
    assert other.usage.cached_tokens <= before
    assert list(other.tokens) == alone(engine, about(picture(7)), GREEDY)


def test_a_prefix_on_disk_changes_nothing(model: Path, engine: Engine, tmp_path: Path) -> None:
    text = "Describe it in a few words, please. " * 4
    prompt, other = about(picture(8, 170, 160), text=text), about(picture(9, 170, 160), text=text)
    expected = [alone(engine, prompt, GREEDY), alone(engine, other, GREEDY)]
    for cached in (False, True):
        with Engine.load(
            model, speculate="off", sequences=1, threads=1, cache_dir=tmp_path, prefix_cache_gb=1
        ) as kept:
            kept._scheduler.cache.disk.costs.pays = lambda *_: True  # type: ignore[union-attr, method-assign]
            result = kept.generate(prompt, GREEDY)
            assert (result.usage.cached_tokens > 60) == cached
            again = kept.generate(other, GREEDY)
            assert [list(result.tokens), list(again.tokens)] == expected


def test_every_drafter_works_behind_an_image(model: Path, engine: Engine, cache: Path) -> None:
    prompts = [PROMPTS[0], PROMPTS[3]]
    expected = [alone(engine, prompt, GREEDY) for prompt in prompts]
    names = [name for name in registry.drafter_names() if name not in NEED_MORE]
    with load(model, cache) as drafting:
        for name in names:
            drafting.set_speculation(name)
            assert [alone(drafting, prompt, GREEDY) for prompt in prompts] == expected, name
            assert not drafting.notes, name


def test_a_draft_model_that_does_not_see_drafts_behind_an_image(
    model: Path, engine: Engine, cache: Path, tmp_path: Path
) -> None:
    draft = tiny_llama(tmp_path / "draft.gguf", ctx_train=1024)
    expected = [alone(engine, prompt, GREEDY) for prompt in PROMPTS]
    with load(model, cache, speculate=f"draft-model:model={draft}") as drafting:
        assert together(drafting, PROMPTS, GREEDY) == expected
        assert not drafting.notes
        assert drafting.generate(PROMPTS[0], GREEDY).speculation.drafters["draft-model"].drafted
