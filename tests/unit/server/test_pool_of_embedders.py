"""Embedding models in the pool: loaded on first use, within the budget, and unloaded like the others."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from fake_embedder import FakeEmbedder
from foredraft import Engine
from foredraft.errors import CapacityError, ModelNotFoundError
from foredraft.server.embedding.served import ServedEmbedder
from foredraft.server.pool import ModelPool, Served
from foredraft.server.settings import ModelSettings, ServerSettings
from foredraft.testing import FakeModel
from http_server import embedders_of


def pool_of(made: dict[str, FakeEmbedder], **settings: object) -> ModelPool:
    models = {name: ModelSettings(path=name) for name in ("chat", *made)}
    return ModelPool(
        ServerSettings(models=models, **settings),  # type: ignore[arg-type]
        lambda _: Engine(FakeModel(258)),
        embedders=embedders_of(made),
    )


def run(pool: ModelPool, scenario: Callable[[], Awaitable[None]]) -> None:
    async def whole() -> None:
        try:
            await scenario()
        finally:
            await pool.close()

    asyncio.run(whole())


def test_both_kinds_are_loaded_on_first_use() -> None:
    made = {"embed": FakeEmbedder(), "rank": FakeEmbedder("reranker")}
    pool = pool_of(made)

    async def scenario() -> None:
        kinds = [await pool.kind_of(name) for name in ("chat", "embed", "rank", "nonesuch")]
        assert kinds == ["generative", "embedding", "reranker", "generative"]
        assert not pool.loaded
        assert isinstance(await pool.get("chat"), Served)
        assert isinstance(embed := await pool.get("embed"), ServedEmbedder)
        assert await pool.get("embed") is embed
        assert list(pool.engines) == ["chat"]
        assert list(pool.embedders) == ["embed"]
        assert pool.state_of("embed") == ("loaded", None)
        assert await pool.unload("embed")
        assert made["embed"].closed

    run(pool, scenario)
    assert not made["rank"].closed, "it was never loaded"


def test_the_least_recently_used_makes_room_but_not_one_in_use() -> None:
    made = {name: FakeEmbedder(size_bytes=60) for name in ("first", "second")}
    pool = pool_of(made, memory_budget_bytes=100)

    async def scenario() -> None:
        first = await pool.get("first")
        with first.hold(), pytest.raises(CapacityError, match="Not enough memory"):
            await pool.get("second")
        await pool.get("second")
        assert list(pool.loaded) == ["second"]
        assert made["first"].closed

    run(pool, scenario)


def test_an_idle_one_is_unloaded_but_not_one_that_is_pinned() -> None:
    made = {"idle": FakeEmbedder(), "pinned": FakeEmbedder()}
    pool = pool_of(made, idle_timeout_s=0.01)
    pinned = ModelSettings(path="pinned", pinned=True)
    pool.use(replace(pool.settings, models={**pool.settings.models, "pinned": pinned}))

    async def scenario() -> None:
        await pool.get("idle")
        await pool.get("pinned")
        time.sleep(0.02)
        await pool.sweep()
        assert list(pool.loaded) == ["pinned"]

    run(pool, scenario)


def test_another_pooling_loads_it_again() -> None:
    pool = pool_of({"embed": FakeEmbedder()})

    async def scenario() -> None:
        await pool.get("embed")
        changed = ModelSettings(path="embed", embeddings="cls")
        pool.use(replace(pool.settings, models={**pool.settings.models, "embed": changed}))
        assert pool.is_outdated("embed")

    run(pool, scenario)


def test_the_kind_of_a_model_whose_files_are_gone() -> None:
    def gone(_: ModelSettings) -> object:
        raise ModelNotFoundError("There is no file.")

    pool = pool_of({"embed": FakeEmbedder()})
    pool._embedders = pool._embedders._replace(kind=gone)  # type: ignore[union-attr, arg-type]

    async def scenario() -> None:
        assert await pool.kind_of("embed") is None
        with pytest.raises(ModelNotFoundError):
            await pool.get("embed")

    run(pool, scenario)
