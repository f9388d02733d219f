"""Who is loaded, who has to leave, and what follows an engine that broke."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from foredraft import Engine
from foredraft.engine.loading import freeze_heap
from foredraft.errors import (
    CapacityError,
    ChildError,
    ConfigError,
    ContextLengthError,
    ForedraftError,
    ModelNotFoundError,
    UnsupportedModelError,
)
from foredraft.server.pool import ModelPool, Served
from foredraft.server.settings import ModelSettings, ServerSettings
from foredraft.templates.traits import TemplateTraits
from foredraft.testing import FakeModel, FakeTokenizer

SIZES = {"small": 1, "middle": 2, "huge": 100}


def run(scenario: Callable[[ModelPool], Awaitable[None]]) -> None:
    def load(settings: ModelSettings) -> Engine:
        model = FakeModel(64)
        model.info = replace(model.info, size_bytes=SIZES[settings.path])
        return Engine(model)

    async def main() -> None:
        models = {name: ModelSettings(path=name) for name in SIZES}
        pool = ModelPool(ServerSettings(models=models, memory_budget_bytes=3), load)
        try:
            await asyncio.wait_for(scenario(pool), 20)
        finally:
            await pool.close()

    asyncio.run(main())


def test_what_a_model_sees_with_counts() -> None:
    def load(settings: ModelSettings) -> Engine:
        model = FakeModel(64)
        seen = {"vision": 2, "compute": 50, "kv_cache": 50} if settings.path == "eyes" else {}
        model.info = replace(model.info, size_bytes=1, memory=seen)
        return Engine(model)

    async def main() -> None:
        models = {name: ModelSettings(path=name) for name in ("one", "two", "eyes")}
        pool = ModelPool(ServerSettings(models=models, memory_budget_bytes=4), load)
        for name in ("one", "two", "eyes"):
            await pool.get(name)
        assert set(pool.loaded) == {"two", "eyes"}
        await pool.close()

    asyncio.run(main())


def test_nobody_leaves_for_a_model_that_can_never_fit() -> None:
    async def scenario(pool: ModelPool) -> None:
        await pool.get("small")
        await pool.get("middle")
        with pytest.raises(CapacityError):
            await pool.get("huge")
        assert set(pool.loaded) == {"small", "middle"}

    run(scenario)


@pytest.mark.parametrize(
    ("template", "said"),
    [("{% if tools %}<function_call>{% endif %}", 1), ("{% if tools %}<tool_call>{% endif %}", 0), (None, 0)],
)
def test_a_form_of_tool_calls_that_is_not_known_is_said_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, template: str | None, said: int
) -> None:
    monkeypatch.setattr(FakeTokenizer, "chat_template", template)
    variables = frozenset({"tools"} if template else ())
    monkeypatch.setattr(FakeTokenizer, "template_traits", TemplateTraits(variables=variables))

    async def scenario(pool: ModelPool) -> None:
        await pool.get("small")
        await pool.get("small")

    run(scenario)
    found = [record.getMessage() for record in caplog.records if "Tools of" in record.getMessage()]
    assert len(found) == said
    assert all("small" in line and "an unknown form" in line for line in found)


def test_a_model_whose_engine_ended_is_loaded_again() -> None:
    async def scenario(pool: ModelPool) -> None:
        first = await pool.get("small")
        await first.worker.close()
        again = await pool.get("small")
        assert again is not first
        assert isinstance(again, Served)
        assert await again.worker.call(lambda engine: engine.idle)

    run(scenario)


def test_the_collector_looks_at_everything_again_when_a_model_was_unloaded() -> None:
    async def scenario(pool: ModelPool) -> None:
        await pool.get("small")
        freeze_heap()
        assert gc.get_freeze_count() > 1000
        await pool.unload("small")
        assert gc.get_freeze_count() < 1000

    run(scenario)


def test_a_model_that_somebody_holds_stays() -> None:
    async def scenario(pool: ModelPool) -> None:
        small = await pool.get("small")
        await pool.get("middle")
        pool.use(replace(pool.settings, memory_budget_bytes=2))
        with small.hold(), pytest.raises(CapacityError):
            await pool._make_room(2)
        await pool._make_room(2)
        assert not pool.loaded

    run(scenario)


def changed(pool: ModelPool, name: str, **settings: Any) -> None:
    """Give a model other settings."""
    models = {**pool.settings.models, name: ModelSettings(**{"path": name, **settings})}
    pool.use(replace(pool.settings, models=models))


def test_a_model_with_other_settings_is_loaded_again_once_it_is_idle() -> None:
    async def scenario(pool: ModelPool) -> None:
        small, middle = await pool.get("small"), await pool.get("middle")
        changed(pool, "small", threads=1)
        with small.hold():
            await pool.sweep()
            assert pool.loaded["small"] is small
        await pool.sweep()
        again = pool.engines["small"]
        assert again is not small
        assert again.settings.threads == 1
        assert await again.worker.call(lambda engine: engine.idle)
        assert again.last_used == small.last_used, "loading it is no use of it"
        assert pool.loaded["middle"] is middle
        await pool.sweep()
        assert pool.loaded["small"] is again, "once is enough"

    run(scenario)


def test_a_model_that_is_loaded_again_answers_who_asks_meanwhile_and_stops_nobody() -> None:
    loading, go_on = threading.Event(), threading.Event()

    async def scenario(pool: ModelPool) -> None:
        await pool.get("small")
        middle = await pool.get("middle")
        changed(pool, "small", threads=1)
        load = pool._load

        def slow(settings: ModelSettings) -> Engine:
            loading.set()
            assert go_on.wait(10)
            return load(settings)

        pool._load = slow
        sweeping = asyncio.create_task(pool.sweep())
        await asyncio.to_thread(loading.wait, 10)
        assert pool.state_of("small") == ("loading", None)
        assert await pool.get("middle") is middle
        asking = asyncio.create_task(pool.get("small"))
        await asyncio.sleep(0)
        go_on.set()
        await sweeping
        assert (await asking).settings.threads == 1
        assert pool.state_of("small") == ("loaded", None)

    run(scenario)


def test_a_model_whose_engine_ended_is_freed_before_it_is_loaded_again() -> None:
    """There may be no memory for both."""
    closed: list[str] = []

    async def scenario(pool: ModelPool) -> None:
        first = await pool.get("small")
        assert isinstance(first, Served)
        going, load = threading.Event(), pool._load
        ending = first.worker._end

        def end(engine: Engine) -> None:
            going.wait(10)
            ending(engine)
            closed.append("first")

        def loading(settings: ModelSettings) -> Engine:
            closed.append("loading")
            return load(settings)

        first.worker._end = end  # type: ignore[method-assign]
        pool._load = loading
        first.worker._inbox.put(None)
        while first.worker.alive:
            await asyncio.sleep(0.01)
        again = asyncio.create_task(pool.get("small"))
        await asyncio.sleep(0.1)
        going.set()
        assert await again is not first
        assert closed == ["first", "loading"]

    run(scenario)


@pytest.mark.parametrize("path", ["huge", "missing"])
def test_a_model_that_cannot_be_loaded_again_has_failed_and_others_stay(
    path: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(pool: ModelPool) -> None:
        await pool.get("small")
        middle = await pool.get("middle")
        changed(pool, "small", path=path)
        await pool.sweep()
        assert dict(pool.loaded) == {"middle": middle}
        state, reason = pool.state_of("small")
        assert state == "failed"
        assert reason
        assert reason in caplog.text
        await pool.sweep()
        assert pool.state_of("small") == (state, reason), "it is not tried again and again"
        changed(pool, "small")
        await pool.get("small")

    run(scenario)


def test_what_is_not_served_any_more_or_idle_for_too_long_is_not_loaded_again() -> None:
    async def scenario(pool: ModelPool) -> None:
        await pool.get("small")
        await pool.get("middle")
        kept = {"small": ModelSettings(path="small", threads=1)}
        pool.use(replace(pool.settings, models=kept, idle_timeout_s=0.001))
        await asyncio.sleep(0.01)
        await pool.sweep()
        assert not pool.loaded
        assert pool.state_of("small") == ("unloaded", None)

    run(scenario)


def test_a_size_that_is_known_beforehand_makes_room_before_loading() -> None:
    at_load: list[set[str]] = []

    async def scenario(pool: ModelPool) -> None:
        pool._measure = lambda settings: SIZES[settings.path]
        pool.use(replace(pool.settings, memory_budget_bytes=2))
        await pool.get("small")
        load = pool._load

        def spying(settings: ModelSettings) -> Engine:
            at_load.append(set(pool.loaded))
            return load(settings)

        pool._load = spying
        await pool.get("middle")
        with pytest.raises(CapacityError):
            await pool.get("huge")
        assert at_load == [set()], "small left before middle was loaded, and huge was never begun"

    run(scenario)


def test_a_model_that_is_removed_while_a_request_waits_for_it_is_not_found() -> None:
    async def scenario(pool: ModelPool) -> None:
        before = pool.settings
        rest = {name: before.models[name] for name in ("middle", "huge")}
        async with pool._changing:
            waiting = asyncio.create_task(pool.get("small"))
            default = asyncio.create_task(pool.get())
            await asyncio.sleep(0.01)
            pool.use(replace(before, models=rest))
        with pytest.raises(ModelNotFoundError):
            await waiting
        assert (await default).name == "middle", "the first one that is left"
        pool.use(before)
        assert pool.state_of("small") == ("unloaded", None)

    run(scenario)


def test_a_model_that_is_removed_while_it_fails_to_load_has_not_failed_when_it_comes_back() -> None:
    async def scenario(pool: ModelPool) -> None:
        before = pool.settings

        def failing(_: ModelSettings) -> Engine:
            pool.use(replace(before, models={"middle": before.models["middle"]}))
            raise CapacityError("no")

        pool._load = failing
        with pytest.raises(CapacityError):
            await pool.get("small")
        pool.use(before)
        assert pool.state_of("small") == ("unloaded", None)

    run(scenario)


@pytest.mark.parametrize(
    ("kind", "raised"),
    [
        (ConfigError, ConfigError),
        (ModelNotFoundError, ModelNotFoundError),
        (UnsupportedModelError, UnsupportedModelError),
        (ContextLengthError, ConfigError),
    ],
)
def test_what_is_wrong_with_the_settings_of_a_model_is_said_with_their_place(
    kind: type[ForedraftError], raised: type[ForedraftError]
) -> None:
    async def scenario(pool: ModelPool) -> None:
        def failing(_: ModelSettings) -> Engine:
            raise kind("it is not said how far.", hint="Say it.")

        pool._load = failing
        with pytest.raises(raised) as caught:
            await pool.get("small")
        assert type(caught.value) is raised
        assert str(caught.value) == "Model small: it is not said how far.\nSay it."
        assert pool.state_of("small") == ("failed", str(caught.value))
        pool.where = "/a/foredraft.toml, [models.{}]".format
        with pytest.raises(raised, match=r"^/a/foredraft.toml, \[models.small\]: it is not said"):
            await pool.get("small")

    run(scenario)


def test_what_is_being_prepared_ends_before_the_model_is_freed() -> None:
    started, go_on = threading.Event(), threading.Event()
    alive: list[bool] = []

    async def scenario(pool: ModelPool) -> None:
        served = await pool.get("small")

        def work() -> None:
            started.set()
            assert go_on.wait(10)
            alive.append(served.worker.alive)

        caller = asyncio.create_task(served.prepare(work))
        assert await asyncio.to_thread(started.wait, 10)
        caller.cancel()  # its client has gone; the thread goes on all the same
        unloading = asyncio.create_task(pool.unload("small"))
        await asyncio.sleep(0.05)
        assert not unloading.done()
        go_on.set()
        assert await unloading
        assert alive == [True]

    run(scenario)


# --- chat templates ------------------------------------------------------------------------------------


class Templated(FakeTokenizer):
    """A tokenizer whose chat template has these traits, or cannot be tried."""

    def __init__(self, traits: TemplateTraits | None) -> None:
        super().__init__()
        self._traits = traits

    @property
    def template_traits(self) -> TemplateTraits:  # type: ignore[override]
        if self._traits is None:
            raise ChildError("A child process could not be started.")
        return self._traits


@pytest.mark.parametrize(
    ("traits", "told"),
    [
        (TemplateTraits(), []),
        (TemplateTraits(error="It cannot be compiled: line 1: no."), ["It cannot be compiled: line 1: no."]),
        (None, ["A child process could not be started."]),
    ],
)
def test_a_template_that_cannot_be_used_is_told_when_the_model_is_loaded(
    traits: TemplateTraits | None, told: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    def load(_: ModelSettings) -> Engine:
        model = FakeModel()
        model.tokenizer = Templated(traits)
        return Engine(model)

    async def main() -> None:
        pool = ModelPool(ServerSettings(models={"m": ModelSettings(path="m")}), load)
        await pool.get("m")
        await pool.close()

    asyncio.run(main())
    warnings = [record.message for record in caplog.records if record.levelname == "WARNING"]
    start = "The chat template of m cannot be used, so the model only accepts prompts without messages. "
    assert warnings == [start + line for line in told]
