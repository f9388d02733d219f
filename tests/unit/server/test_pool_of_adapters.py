"""Requests for adapters while a model's settings change: never answered by another model than asked for."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from foredraft import Engine
from foredraft.errors import CapacityError
from foredraft.server.caller import generating
from foredraft.server.pool import Lease, ModelPool
from foredraft.server.settings import AdapterSettings, ModelSettings, ServerSettings
from foredraft.testing import FakeModel

SQL, OTHER_SQL, TERSE = (
    AdapterSettings(name=name, path=path)
    for name, path in (("sql", "sql.gguf"), ("sql", "new.gguf"), ("terse", "terse.gguf"))
)


def model(*adapters: AdapterSettings, threads: int = 0) -> ModelSettings:
    return ModelSettings(path="base", adapters=adapters, threads=threads)


def settings(base: ModelSettings, *, default: str | None = None) -> ServerSettings:
    return ServerSettings(models={"base": base, "other": ModelSettings(path="other")}, default_model=default)


def change(pool: ModelPool, base: ModelSettings) -> None:
    pool.use(replace(pool.settings, models={**pool.settings.models, "base": base}))


async def asked(pool: ModelPool, name: str | None) -> Lease:
    return pool.leased(generating(await pool.get(name)), name)


def run(scenario: Callable[[ModelPool], Awaitable[None]], first: ServerSettings) -> None:
    def load(model: ModelSettings) -> Engine:
        return Engine(FakeModel(64, adapters=tuple(adapter.name for adapter in model.adapters)))

    async def main() -> None:
        pool = ModelPool(first, load)
        try:
            await asyncio.wait_for(scenario(pool), 20)
        finally:
            await pool.close()

    asyncio.run(main())


@pytest.mark.parametrize("before", [(), (OTHER_SQL,)], ids=["new", "another file"])
def test_an_adapter_that_is_not_loaded_yet_is_refused_until_the_model_is_idle(
    before: tuple[AdapterSettings, ...],
) -> None:
    async def scenario(pool: ModelPool) -> None:
        busy = await pool.get("base")
        with busy.hold():
            change(pool, model(SQL))
            assert await pool.get("base") is busy, "nobody waits for the adapter"
            with pytest.raises(CapacityError, match="sql is not loaded yet"):
                await pool.get("sql")
            with pytest.raises(CapacityError, match="base is loaded again"):
                await pool.get("base")
        found = await asked(pool, "sql")
        assert (found.name, found.adapter) == ("sql", "sql")
        assert found.model is pool.loaded["base"], "what holds the adapter holds its model"
        assert found.model.settings.adapters == (SQL,)
        assert not busy.worker.alive
        assert (await asked(pool, "base")).adapter == ""

    run(scenario, settings(model(*before)))


def test_an_adapter_that_stays_is_answered_with_while_another_comes() -> None:
    async def scenario(pool: ModelPool) -> None:
        busy = await pool.get("base")
        with busy.hold():
            change(pool, model(SQL, TERSE))
            assert (await asked(pool, "sql")).adapter == "sql"

    run(scenario, settings(model(SQL)))


def test_settings_that_come_back_end_the_wait() -> None:
    async def scenario(pool: ModelPool) -> None:
        busy = await pool.get("base")
        with busy.hold():
            change(pool, model(SQL))
            with pytest.raises(CapacityError):
                await pool.get("sql")
            change(pool, model())
            assert await pool.get("base") is busy
            change(pool, model(threads=1))
            assert await pool.get("base") is busy, "nobody waits for that"

    run(scenario, settings(model()))


def test_a_name_that_was_an_adapter_is_the_models_now() -> None:
    async def scenario(pool: ModelPool) -> None:
        with (await pool.get("base")).hold():
            change(pool, ModelSettings(path="base", aliases=("sql",)))
            assert (await asked(pool, "sql")).adapter == ""

    run(scenario, settings(model(SQL)))


def test_an_adapter_whose_file_changes_while_the_model_loads_is_not_answered_with() -> None:
    async def scenario(pool: ModelPool) -> None:
        load = pool._load

        def changing(settings: ModelSettings) -> Engine:
            change(pool, model(OTHER_SQL))
            return load(settings)

        pool._load = changing
        with pytest.raises(CapacityError, match="sql is not loaded yet"):
            await pool.get("sql")
        pool._load = load
        assert (await asked(pool, "sql")).model.settings.adapters == (OTHER_SQL,)

    run(scenario, settings(model(SQL)))


def test_the_default_may_be_an_adapter() -> None:
    async def scenario(pool: ModelPool) -> None:
        assert (await asked(pool, None)).adapter == "sql"

    run(scenario, settings(model(SQL), default="sql"))
