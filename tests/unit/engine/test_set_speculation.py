"""Changing what drafts while the model stays loaded."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

import gguf_factory
from foredraft import Engine
from foredraft.errors import RequestError, SpeculationStringError
from foredraft.protocols import Drafter, DrafterContext
from foredraft.registry import register_drafter, unregister_drafter
from foredraft.testing import FakeModel, ScriptedDrafter, markov_logits

PROMPT = [1, 2, 3]


class Closing(ScriptedDrafter):
    """Drafts nothing, and says when it was closed."""

    def __init__(self) -> None:
        super().__init__(lambda history: None)
        self.closed = 0

    def close(self) -> None:
        self.closed += 1


def looping() -> FakeModel:
    return FakeModel(6, logits=markov_logits(6, order=1, scale=8.0))


def test_the_next_request_is_drafted_as_asked_and_the_text_is_the_same() -> None:
    engine = Engine(looping())
    plain = engine.generate(PROMPT, max_tokens=60, ignore_eos=True)
    assert not plain.speculation.drafters
    engine.set_speculation("ngram-simple:n=3")
    drafted = engine.generate(PROMPT, max_tokens=60, ignore_eos=True)
    assert drafted.tokens == plain.tokens
    assert drafted.speculation.configured == "ngram-simple:n=3"
    assert drafted.speculation.drafters["ngram-simple"].accepted > 0
    engine.set_speculation("off")
    assert engine.generate(PROMPT, max_tokens=4).speculation.reason == "speculation is turned off"


def test_the_kv_cache_and_the_yardstick_stay() -> None:
    engine = Engine(looping())
    engine.generate(PROMPT * 5, max_tokens=20, ignore_eos=True)
    engine.set_speculation("ngram-simple:n=3")
    result = engine.generate(PROMPT * 5, max_tokens=1)
    assert result.usage.cached_tokens == len(PROMPT * 5) - 1
    assert engine.plain_round(1) is not None


def test_the_old_drafters_are_closed_once_the_new_ones_are_there() -> None:
    old = Closing()
    engine = Engine(looping(), drafters=[old])
    engine.set_speculation("auto")
    assert old.closed == 1
    engine.generate(PROMPT, max_tokens=4)
    assert not old.outcomes


@pytest.mark.parametrize("spec", ["", "nonesuch", "suffix:mx=3", "ngram-simple:n=0"])
def test_a_bad_string_changes_nothing(spec: str) -> None:
    old = Closing()
    engine = Engine(looping(), drafters=[old])
    with pytest.raises(SpeculationStringError):
        engine.set_speculation(spec)
    assert not old.closed
    result = engine.generate(PROMPT, max_tokens=4)
    assert result.speculation.configured == "custom"
    assert old.outcomes


def test_not_while_a_request_is_there() -> None:
    engine = Engine(looping(), drafters=[Closing()])
    request = engine.add(PROMPT)
    with pytest.raises(RequestError, match="while a request is running"):
        engine.set_speculation("off")
    engine.abort(request)
    engine.set_speculation("off")
    assert engine.generate(PROMPT, max_tokens=2).speculation.configured == "off"


def test_the_store_stays_the_one_the_engine_was_loaded_with(tmp_path: Path) -> None:
    seen: list[Path | None] = []

    def create(context: DrafterContext, options: Mapping[str, str]) -> Drafter:
        seen.append(context.store)
        return Closing()

    register_drafter("watching", create)
    try:
        path = gguf_factory.tiny_llama(tmp_path / "tiny.gguf")
        with Engine.load(path, speculate="off", threads=1, cache_dir=tmp_path / "cache") as engine:
            engine.set_speculation("watching")
    finally:
        unregister_drafter("watching")
    assert seen == [tmp_path / "cache" / "store"]


def test_a_drafter_that_cannot_be_used_is_a_note_of_the_new_setting_only() -> None:
    engine = Engine(looping())
    engine.set_speculation("draft-model:model=/nonexistent.gguf")
    assert len(engine.notes) == 1
    engine.set_speculation("off")
    assert not engine.notes
