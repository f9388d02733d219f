"""Making the draft-model drafter from its options: what it loads, and what it refuses."""

from __future__ import annotations

from dataclasses import replace

import pytest

from foredraft.drafters.draft_model import DraftModelDrafter, create
from foredraft.errors import SpeculationStringError, UnsupportedModelError
from foredraft.protocols import DrafterContext, Model, RequestView
from foredraft.testing import FakeModel, drafter_context
from foredraft.types import DraftLimit, Rollback
from two_tokenizers import COARSE, FINE, TEXT, speaker

VOCAB = 24


def context_with(model: FakeModel, calls: list[tuple[str, int, int]]) -> DrafterContext:
    def load(path: str, *, sequences: int, context_length: int) -> Model:
        calls.append((path, sequences, context_length))
        return model

    return replace(drafter_context(FakeModel(VOCAB, sequences=3, context_length=777)), load_model=load)


def test_create_loads_beside_the_target() -> None:
    calls: list[tuple[str, int, int]] = []
    made = create(context_with(FakeModel(VOCAB), calls), {"model": "small.gguf", "max": "3", "min-p": "0.0"})
    create(context_with(FakeModel(VOCAB), calls), {"model": "other.gguf", "ctx": "64"})
    assert calls == [("small.gguf", 3, 777), ("other.gguf", 3, 64)]
    assert made.name == "draft-model"
    (draft,) = made.draft([(RequestView(1, [1, 2, 3], prompt_length=3), DraftLimit(64))])
    assert draft is not None
    assert len(draft) <= 3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "needs a model"),
        ({"model": "m", "max": "0"}, "at least 1"),
        ({"model": "m", "min-p": "1.5"}, "between 0 and 1"),
        ({"model": "m", "min-p": "nan"}, "between 0 and 1"),
        ({"model": "m", "ctx": "-1"}, "negative"),
        ({"model": "m", "length": "4"}, "no option"),
        ({"model": "m", "translate": "yes"}, "translate='yes' is not a valid method"),
    ],
)
def test_create_refuses_bad_options_without_loading(options: dict[str, str], message: str) -> None:
    calls: list[tuple[str, int, int]] = []
    with pytest.raises(SpeculationStringError, match=message):
        create(context_with(FakeModel(VOCAB), calls), options)
    assert calls == []


def test_create_refuses_a_vocabulary_that_text_does_not_survive() -> None:
    other = FakeModel(VOCAB + 1, name="other")
    with pytest.raises(
        UnsupportedModelError, match=r"vocabularies of other and fake differ.*other does not reproduce"
    ):
        create(context_with(other, []), {"model": "m"})
    assert other.closed


@pytest.mark.parametrize("way", ["auto", "slem", "tli"])
def test_create_translates_between_vocabularies(way: str) -> None:
    notes: list[str] = []
    target, other = speaker(COARSE), speaker(FINE, name="small")
    context = replace(drafter_context(target), load_model=lambda path, **_: other, notice=notes.append)
    made = create(context, {"model": "m", "max": "3", "translate": way})
    (note,) = notes
    assert "drafts of small are translated" in note
    assert "97% of the tokens of speaker" in note
    (draft,) = made.draft([(RequestView(1, COARSE.encode(TEXT)[:20], prompt_length=20), DraftLimit(64))])
    assert draft is not None
    assert 0 < len(draft) <= 3
    made.close()
    assert other.closed


def test_create_refuses_to_translate_if_told_so() -> None:
    other = speaker(FINE, name="small")
    context = replace(drafter_context(speaker(COARSE)), load_model=lambda path, **_: other)
    with pytest.raises(UnsupportedModelError, match=r"vocabularies of small and speaker differ.*is off"):
        create(context, {"model": "m", "translate": "off"})
    assert other.closed


def test_a_model_of_the_same_vocabulary_needs_no_translation() -> None:
    notes: list[str] = []
    context = replace(context_with(FakeModel(VOCAB), []), notice=notes.append)
    assert isinstance(create(context, {"model": "m", "translate": "slem"}), DraftModelDrafter)
    assert notes == []


def test_create_refuses_a_model_that_cannot_roll_back() -> None:
    other = FakeModel(VOCAB).with_capabilities(rollback=Rollback.SNAPSHOT)
    with pytest.raises(UnsupportedModelError, match="snapshot"):
        create(context_with(other, []), {"model": "m"})
    assert other.closed
