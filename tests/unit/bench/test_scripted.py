"""A model that computes like any other and says what is scripted."""

from __future__ import annotations

import pytest

from foredraft.bench.scripted import ScriptedModel
from foredraft.engine.engine import Engine
from foredraft.errors import BackendError
from foredraft.testing import FakeModel, ScriptedDrafter
from foredraft.types import Rows, SamplingParams

PROMPT = (1, 2, 3)
OUTPUT = (50, 51, 52, 53, 50, 51, 60, 61)


def scripted() -> ScriptedModel:
    model = ScriptedModel(FakeModel())
    model.text = PROMPT + OUTPUT
    return model


def answer(engine: Engine, tokens: int = len(OUTPUT)) -> tuple[int, ...]:
    return engine.generate(list(PROMPT), SamplingParams(max_tokens=tokens, ignore_eos=True)).tokens


def test_it_says_the_text() -> None:
    with Engine(scripted()) as engine:
        assert answer(engine) == OUTPUT
        assert answer(engine) == OUTPUT, "also from a cached prompt"


@pytest.mark.parametrize("right", [True, False])
def test_drafts_are_verified_against_it(right: bool) -> None:
    whole = PROMPT + OUTPUT
    drafter = ScriptedDrafter(
        lambda history: [token if right else token + 1 for token in whole[len(history) :][:3]]
    )
    model = scripted()
    with Engine(model, drafters=[drafter]) as engine:
        assert answer(engine) == OUTPUT
        accepted = [outcome.accepted for outcome in drafter.outcomes if outcome.draft is not None]
    assert accepted
    assert all(bool(count) == right for count in accepted)
    assert max(model.sizes) == 4, "the last token and three drafted ones"


def test_after_the_text_the_model_speaks_for_itself() -> None:
    with Engine(scripted()) as engine, Engine(FakeModel()) as plain:
        more = answer(engine, len(OUTPUT) + 5)
        rest = plain.generate([*PROMPT, *OUTPUT], SamplingParams(max_tokens=5, ignore_eos=True)).tokens
    assert more == OUTPUT + rest


def test_several_sequences_say_the_same() -> None:
    with Engine(scripted()) as engine:
        params = SamplingParams(max_tokens=len(OUTPUT), ignore_eos=True)
        done = engine.run([engine.add(list(PROMPT), params) for _ in range(3)])
    assert [completion.tokens for completion in done] == [OUTPUT] * 3


def test_trees_have_no_place_in_it() -> None:
    with pytest.raises(BackendError, match="chains"):
        scripted().forward([Rows(0, 0, (1, 2, 3), 3, parents=(-1, 0, 0))])


def test_everything_else_is_the_model_s() -> None:
    inner = FakeModel()
    model = ScriptedModel(inner)
    model.forward([Rows(0, 0, (1, 2, 3), 1)])
    assert (model.info, model.capabilities, model.tokenizer) == (
        inner.info,
        inner.capabilities,
        inner.tokenizer,
    )
    model.fork(0, 1, 2)
    saved = model.snapshot(1)
    model.truncate(0, 1)
    model.release(1)
    model.restore(1, saved)
    assert [model.length(0), model.length(1)] == [1, 2]
    model.close()
    assert inner.closed
