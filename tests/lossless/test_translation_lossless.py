"""The first promise, for draft models with another tokenizer: the same tokens as without them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from foredraft import Engine, SamplingParams
from foredraft.config import Stage
from foredraft.planner import StaticPlanner
from foredraft.protocols import Drafter, Model
from foredraft.registry import create_drafter
from foredraft.sampling.coupled import CoupledSampler
from foredraft.testing import FakeModel, assert_lossless, drafter_context
from foredraft.types import Constraint
from matrix import matrix
from two_tokenizers import ALL, COARSE, FINE, TEXT, WORDS, speaker, text_of

LONG = SamplingParams(seed=4, max_tokens=40, ignore_eos=True)
SETTINGS = {
    "greedy": LONG,
    "warm": replace(LONG, temperature=0.9),
    "everything": replace(
        LONG,
        temperature=1.0,
        repetition_penalty=1.05,
        presence_penalty=0.2,
        top_k=40,
        top_p=0.98,
        min_p=0.001,
        logit_bias={256: 1.0, 65: -2.0},
    ),
    "ends": SamplingParams(temperature=0.7, seed=2, min_tokens=5, max_tokens=40, stop_tokens=(257,)),
}


def made(model: Model, drafting: FakeModel, way: str) -> Drafter:
    context = replace(
        drafter_context(model),
        sampler=CoupledSampler(model.info.vocab_size, model.tokenizer.end_tokens),
        load_model=lambda path, *, sequences, context_length: drafting,
    )
    return create_drafter(Stage("draft-model", {"model": "small", "max": "5", "translate": way}), context)


@matrix(ours=["coarse", "bytes"], way=["auto", "slem", "tli"], settings=SETTINGS)
def test_a_translated_draft_leaves_the_text_as_it_is(ours: str, way: str, settings: str) -> None:
    target = ALL[ours]
    start = target.encode(TEXT)
    origins = assert_lossless(
        lambda: speaker(target, sure=6.0),
        lambda model: [made(model, speaker(FINE, sure=4.0), way)],
        [start[:3], start[:20], start, [*start[:5], target.separator, *start[5:9]]],
        SETTINGS[settings],
        concurrent=True,
    )
    if settings == "greedy":
        assert origins["draft-model"] > 40, "much of the text was drafted"


@pytest.mark.parametrize("rule", ["rejection", "block"])
@pytest.mark.parametrize("way", ["slem", "tli"])
def test_the_sampled_rules_take_translated_drafts(way: str, rule: str) -> None:
    model = speaker(WORDS)
    params = SamplingParams(temperature=0.8, seed=1, max_tokens=60, verify=rule)  # type: ignore[arg-type]
    drafting = made(model, speaker(COARSE), way)
    with Engine(model, drafters=[drafting], planner=StaticPlanner()) as engine:
        result = engine.generate(WORDS.encode(TEXT)[:9], params)
    expected = text_of(WORDS, WORDS.encode(TEXT * 3)[9:69])
    assert text_of(WORDS, result.tokens) == expected
    assert result.speculation.acceptance_rate is not None
    assert result.speculation.acceptance_rate > 0.5


# --- with llama.cpp ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("xllamacpp")
    from gguf_factory import tiny_llama

    folder = tmp_path_factory.mktemp("tiny")
    tiny_llama(folder / "target.gguf", vocab=448, ctx_train=512)
    tiny_llama(folder / "draft.gguf", vocab=384, layers=1, ctx_train=512, seed=1)
    return folder


@pytest.fixture(scope="module")
def tiny(folder: Path) -> Iterator[Engine]:
    with Engine.load(
        folder / "target.gguf",
        speculate="off",
        threads=1,
        gpu_layers=0,
        context_length=512,
        cache_dir=folder,
        remember=False,
    ) as engine:
        yield engine


PROMPTS = [
    "The quick brown fox: ",
    "Grüße, 漢字 and 👩‍👧 …",
    "<|im_start|>user\nnumbers 100 and 200<|im_end|>\n",
]


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("way", ["auto", "slem", "tli"])
def test_a_gguf_gives_the_same_answer_with_a_draft_of_another_vocabulary(
    tiny: Engine, folder: Path, way: str, temperature: float
) -> None:
    params = SamplingParams(temperature=temperature, seed=3, max_tokens=60, ignore_eos=True)
    tiny.set_speculation("off")
    plain = [tiny.generate(prompt, params) for prompt in PROMPTS]
    tiny.set_speculation(f"draft-model:model={folder / 'draft.gguf'},max=4,translate={way}")
    (note,) = tiny.notes
    assert "are translated" in note
    said = [name.lower() for name in ("SLEM", "TLI") if name in note]
    assert said == (["slem", "tli"] if way == "auto" else [way])
    for prompt, expected in zip(PROMPTS, plain, strict=True):
        result = tiny.generate(prompt, params)
        assert (result.tokens, result.text) == (expected.tokens, expected.text)
        assert result.speculation.active
        assert result.timings.draft_n > 10


def test_a_constraint_is_kept_to(tiny: Engine, folder: Path) -> None:
    params = SamplingParams(max_tokens=40, constraint=Constraint("regex", "(fox|dog|the rain){3}"))
    tiny.set_speculation("off")
    plain = tiny.generate("The quick brown fox: ", params)
    for way in ("slem", "tli"):
        tiny.set_speculation(f"draft-model:model={folder / 'draft.gguf'},translate={way}")
        assert tiny.generate("The quick brown fox: ", params).tokens == plain.tokens
        assert len(tiny.notes) == 1


def test_translation_can_be_switched_off(tiny: Engine, folder: Path) -> None:
    tiny.set_speculation(f"draft-model:model={folder / 'draft.gguf'},translate=off")
    (note,) = tiny.notes
    assert "cannot be used" in note
    assert "translation is off" in note
    assert tiny.generate("x", SamplingParams(max_tokens=3)).speculation.active is False
