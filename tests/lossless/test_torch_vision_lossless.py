"""Models of transformers that see: no token differs drafted, in company, or from the prefix cache."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest

from foredraft import Engine
from foredraft.types import Completion, Message, SamplingParams
from seeing_factory import MODELS, make_seeing_model, picture
from torch_cases import load

TOKENS = 24
KINDS = [kind for kind in MODELS if kind != "qwen2_5_vl"]  # as qwen2_vl, behind its images
SPECULATION = "suffix;recycle;ngram-simple:n=2,m=6"
GREEDY = SamplingParams(max_tokens=TOKENS, ignore_eos=True)
SEEDED = SamplingParams(max_tokens=TOKENS, ignore_eos=True, temperature=0.8, seed=7)


def conversations() -> list[list[Message]]:
    """Images in the first and in a later turn, two at once, and none."""
    first, second = ({"type": "image", "image": picture(seed)} for seed in (1, 2))
    small = {"type": "image", "image": picture(3, 40, 40)}
    text = {"type": "text", "text": "what is this? again and again and again"}
    said = {"role": "assistant", "content": "again and again"}
    return [
        [{"role": "user", "content": [first, text]}],
        [{"role": "user", "content": [first, text]}, said, {"role": "user", "content": [text, second]}],
        [{"role": "user", "content": [text, second, small, text]}],
        [{"role": "user", "content": "no image again and again and again"}],
    ]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Any:
    root = tmp_path_factory.mktemp("seeing")

    @cache
    def folder(kind: str) -> Path:
        return make_seeing_model(root / kind, kind)

    return folder


def answers(folder: Path, speculate: str, params: SamplingParams, *, together: bool) -> list[Completion]:
    with Engine(load(folder, sequences=4, batch=64)) as engine:
        engine.set_speculation(speculate)
        if together:
            return engine.run([engine.add(messages, params) for messages in conversations()])
        return [engine.generate(messages, params) for messages in conversations()]


@pytest.mark.parametrize("params", [GREEDY, SEEDED], ids=["greedy", "seeded"])
@pytest.mark.parametrize("kind", KINDS)
def test_no_token_differs(folders: Any, kind: str, params: SamplingParams) -> None:
    plain = [list(one.tokens) for one in answers(folders(kind), "off", params, together=False)]
    assert len({tuple(tokens) for tokens in plain}) == len(plain)
    drafted = 0
    for speculate in ("off", SPECULATION):
        for together in (False, True):
            found = answers(folders(kind), speculate, params, together=together)
            assert [list(one.tokens) for one in found] == plain, (speculate, together)
            drafted += sum(one.timings.draft_n for one in found)
    assert drafted > 20


@pytest.mark.parametrize("kind", KINDS)
def test_no_token_differs_behind_cached_images(folders: Any, kind: str) -> None:
    """The same conversation again, another image of the same size, and a next turn."""
    first, other, longer = conversations()[0], conversations()[0], conversations()[1]
    text = first[0]["content"][1]
    other = [{"role": "user", "content": [{"type": "image", "image": picture(9)}, text]}]
    fresh = []
    for messages in (first, other, longer):
        with Engine(load(folders(kind))) as engine:
            fresh.append(engine.generate(messages, GREEDY))
    with Engine(load(folders(kind))) as engine:
        engine.set_speculation(SPECULATION)
        found = [engine.generate(messages, GREEDY) for messages in (first, first, longer, other, first)]
    expected = [fresh[0], fresh[0], fresh[2], fresh[1], fresh[0]]
    assert [one.tokens for one in found] == [one.tokens for one in expected]
    prompt = found[1].usage.prompt_tokens
    assert found[1].usage.cached_tokens > prompt - 10
    assert found[2].usage.cached_tokens > 10  # the first turn's image is among them
    assert found[3].usage.cached_tokens < 10  # the other image is not the first one


@pytest.mark.parametrize("kind", ["qwen2_vl", "gemma3"])
def test_no_token_differs_behind_images_from_the_disk(folders: Any, kind: str, tmp_path: Path) -> None:
    """The cells and the positions behind images outlive the process that computed them."""

    def loaded(gigabytes: float, speculate: str) -> Engine:
        return Engine.load(
            folders(kind),
            speculate=speculate,
            threads=1,
            gpu_layers=0,
            context_length=256,
            cache_dir=tmp_path,
            prefix_cache_gb=gigabytes,
        )

    story: list[Message] = conversations()[2]
    longer = [*story, {"role": "assistant", "content": "again"}, {"role": "user", "content": "and now?"}]
    with loaded(0, "off") as engine:
        plain = engine.generate(longer, SEEDED)
    with loaded(1, "off") as engine:
        engine.generate(story, SamplingParams(max_tokens=1))
    with loaded(1, SPECULATION) as engine:
        kept = engine.generate(longer, SEEDED)
    assert kept.tokens == plain.tokens
    assert kept.usage.cached_tokens > 64
