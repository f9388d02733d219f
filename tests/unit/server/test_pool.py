"""Who is loaded, who has to leave, and what follows an engine that broke."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from foretoken import Engine
from foretoken.errors import CapacityError
from foretoken.server.pool import ModelPool
from foretoken.server.settings import ModelSettings, ServerSettings
from foretoken.testing import FakeModel

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


def test_a_model_whose_engine_ended_is_loaded_again() -> None:
    async def scenario(pool: ModelPool) -> None:
        first = await pool.get("small")
        await first.worker.close()
        again = await pool.get("small")
        assert again is not first
        assert await again.worker.call(lambda engine: engine.idle)

    run(scenario)
