"""Who is loaded, who has to leave, and what follows an engine that broke."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from foredraft import Engine
from foredraft.engine.loading import freeze_heap
from foredraft.errors import CapacityError, ChildError
from foredraft.server.pool import ModelPool
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
