"""Changing what drafts while the model stays loaded."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

import gguf_factory
from foredraft import Engine
from foredraft.engine.speculation import WarmUp
from foredraft.errors import CapacityError, RequestError, SpeculationStringError
from foredraft.protocols import Drafter, DrafterContext
from foredraft.registry import register_drafter, unregister_drafter
from foredraft.testing import FakeHead, FakeModel, ScriptedDrafter, markov_logits

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


# --- networks: heads and draft models --------------------------------------------------------------------


class Counted(FakeHead):
    """A head that tells its model when it is closed."""

    def close(self) -> None:
        if not self.closed:
            self.model.alive -= 1
        super().close()

    model: WithHeads


class WithHeads(FakeModel):
    """It counts the heads that are in memory. `fails`: errors that the next heads fail to load with."""

    def __init__(self) -> None:
        super().__init__(6, logits=markov_logits(6, order=1, scale=8.0), features=("next",))
        self.alive = self.most = 0
        self.fails: list[BaseException] = []

    def load_head(self, path: Path | None, *, sequences: int) -> FakeHead:
        if self.fails:
            raise self.fails.pop(0)
        head = Counted(self, sequences=sequences)
        head.model = self
        self.alive += 1
        self.most = max(self.most, self.alive)
        return head


def drafts(engine: Engine) -> int:
    """How many tokens of an answer the head drafted rightly."""
    answer = engine.generate(PROMPT, max_tokens=40, ignore_eos=True)
    heads = answer.speculation.drafters.get("heads")
    return heads.accepted if heads else 0


def test_a_head_is_closed_before_another_is_loaded() -> None:
    model = WithHeads()
    with Engine(model) as engine:
        for setting in ("heads:max=3", "heads:max=5", "grammar;heads", "heads"):
            engine.set_speculation(setting)
            assert (model.alive, model.most) == (1, 1)
            assert drafts(engine) > 10
        engine.set_speculation("suffix")
        assert model.alive == 0


def test_a_head_that_cannot_be_loaded_is_done_without() -> None:
    model = WithHeads()
    with Engine(model) as engine:
        engine.set_speculation("heads:max=3")
        model.fails = [CapacityError("There is no room for it.")]
        engine.set_speculation("suffix;heads:max=5")
        assert (model.alive, engine.setup.drafters.names) == (0, ["suffix"])
        assert engine.notes == ("drafter heads:max=5 cannot be used: There is no room for it.",)
        assert not drafts(engine)


@pytest.mark.parametrize("at", ["second stage", "load", "warm-up"])
def test_a_setting_that_fails_leaves_the_old_one(at: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = WithHeads()
    with Engine(model) as engine:
        engine.set_speculation("grammar;heads:max=3")
        assert drafts(engine) > 10
        planner, drafters = engine.planner, engine.setup.drafters
        expected: type[BaseException] = KeyboardInterrupt
        setting = "heads:max=5"
        if at == "second stage":
            setting, expected = "heads:max=5;suffix:mx=3", SpeculationStringError
        elif at == "load":
            model.fails = [KeyboardInterrupt()]
        else:

            def press(warm_up: WarmUp, planner: object) -> None:
                raise KeyboardInterrupt

            monkeypatch.setattr(WarmUp, "begin", press)
        with pytest.raises(expected):
            engine.set_speculation(setting)
        assert (model.alive, model.most) == (1, 1)
        assert engine.setup.configured == "grammar;heads:max=3"
        assert engine.setup.head == "its own layers"
        assert engine.planner is planner
        assert engine.setup.drafters.names == ["grammar", "heads"]
        assert engine.setup.drafters is drafters  # with what it has learnt
        assert not engine.notes
        assert drafts(engine) > 10
        monkeypatch.undo()
        engine.set_speculation("heads:max=2")
        assert (model.alive, model.most) == (1, 1)


def test_a_head_that_cannot_be_put_back_is_a_note() -> None:
    model = WithHeads()
    with Engine(model) as engine:
        engine.set_speculation("suffix;heads:max=3")
        model.fails = [KeyboardInterrupt(), CapacityError("There is no room for it.")]
        with pytest.raises(KeyboardInterrupt):
            engine.set_speculation("heads:max=5")
        assert model.alive == 0
        assert engine.setup.drafters.names == ["suffix"]
        assert engine.setup.head is None
        assert engine.notes == ("drafter heads:max=3 cannot be used: There is no room for it.",)
        assert not drafts(engine)
        engine.set_speculation("heads:max=5")
        assert drafts(engine) > 10
        assert not engine.notes
