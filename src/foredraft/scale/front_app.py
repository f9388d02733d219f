"""The front's application: what it answers itself, and the way to the replicas for everything else."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from fastapi import APIRouter, FastAPI

from foredraft.engine.engine import Engine
from foredraft.errors import ForedraftError
from foredraft.scale.front import Forwarding, Replicas, forwarded_paths
from foredraft.scale.metrics import FRONT, ClusterMetrics, FrontMetrics, Read, cluster_metrics_router
from foredraft.server.app import SWEEP_S, api_app, guard
from foredraft.server.openai.models import listed
from foredraft.server.page.built import FILES
from foredraft.server.pool import ModelPool
from foredraft.server.rates import Admit
from foredraft.server.settings import ModelSettings, ServerSettings
from foredraft.server.taking import Reload, take_settings
from foredraft.server.telemetry import Telemetry

logger = logging.getLogger("foredraft.server.scale")


class OneProcessError(ForedraftError):
    """The request is about the engines of one process, of which there are several here."""

    code = "one_process_only"
    status = 501
    exit_code = 2


ONE_PROCESS = ("/console/{rest:path}", "/v1/models/{name:path}/load", "/v1/models/{name:path}/unload")
"""Paths that have an answer in a server of one process only, beside the page's."""


def front_app(
    settings: ServerSettings,
    replicas: Mapping[str, Replicas],
    *,
    allow_public: bool = False,
    admit: Admit | None = None,
    reload: Reload = lambda: None,
    telemetry: Telemetry | None = None,
    name: str = FRONT,
    fronts: Read | None = None,
) -> FastAPI:
    """The application around the `replicas` of each model of `settings`. `allow_public`, `reload` and
    `telemetry` as in `build_app`, `admit` as in `Gate`, `name` and `fronts` as in `ClusterMetrics`.

    Its `state.metrics` is the `ClusterMetrics`, for what it tells other fronts.
    """
    pool, metrics = ModelPool(settings, _never), FrontMetrics()
    joined = ClusterMetrics(metrics.exposition, name=name, fronts=fronts)

    @asynccontextmanager
    async def alive() -> AsyncGenerator[None, None]:
        tasks = [asyncio.create_task(it) for it in (_watch(pool, reload), joined.learn())]
        yield
        for task in tasks:
            task.cancel()
        await pool.close()
        if telemetry is not None:
            await asyncio.to_thread(telemetry.close)

    routers = [absent_router(), own_router(pool, replicas)]
    if settings.metrics:
        routers.append(cluster_metrics_router(joined, partial(expositions, replicas)))
    app = api_app(pool, alive, routers)
    app.state.metrics = joined
    paths = forwarded_paths(pool)
    app.add_middleware(Forwarding, pool=pool, paths=paths, replicas=replicas, metrics=metrics)
    books = [telemetry] if telemetry is not None else []
    guard(app, lambda: pool.settings, books, allow_public=allow_public, admit=admit)
    return app


async def _watch(pool: ModelPool, reload: Reload) -> None:
    """Apply new settings."""
    while True:
        await asyncio.sleep(SWEEP_S)
        try:
            take_settings(pool, reload())
        except Exception:
            logger.exception("Reading the settings failed; it will be tried again.")


async def expositions(replicas: Mapping[str, Replicas]) -> dict[str, bytes]:
    """The metrics of every replica of every model, by its name."""
    found = await asyncio.gather(*(each.read("/metrics") for each in replicas.values()))
    return {name: body for bodies in found for name, body in bodies.items()}


def _never(model: ModelSettings) -> Engine:
    raise AssertionError(f"The front loads no models, but was asked for {model.path}.")


def absent_router() -> APIRouter:
    """What works on the engines of one process answers with what to use instead."""
    router = APIRouter(include_in_schema=False)

    async def absent() -> None:
        raise OneProcessError(
            "The page and its console show one process, and this server's models have replicas in several.",
            hint="GET /v1/speculation and /metrics show all of them; 'ray status' and 'serve status' show "
            "what runs where. The page is that of 'foredraft serve' without --ray.",
        )

    for path in (*FILES, *ONE_PROCESS):
        router.add_api_route(path, absent, methods=["GET", "POST", "PUT", "PATCH", "DELETE"])
    return router


def own_router(pool: ModelPool, replicas: Mapping[str, Replicas]) -> APIRouter:
    """What the front answers from what the replicas say: health, models, the state of speculation."""
    router = APIRouter(include_in_schema=False)
    known: dict[str, dict[str, Any]] = {}
    """The entry of each model and adapter in the list of models, as a replica last wrote it."""

    async def entries(model: str) -> list[dict[str, Any]]:
        for body in (await replicas[model].read("/v1/models")).values():
            known.update((entry["id"], entry) for entry in json.loads(body)["data"])
        names = [model, *(adapter.name for adapter in pool.settings.models[model].adapters)]
        return [{**known.get(name, _unknown(name)), "created": pool.created} for name in names]

    @router.get("/health")
    async def health() -> dict[str, Any]:
        if pool.settings.keys:  # as `extras/health.py`
            return {"status": "ok"}
        return {
            "status": "ok",
            "models": {name: bool(await replicas[name].read("/health")) for name in pool.names},
        }

    @router.get("/v1/models")
    async def models() -> dict[str, Any]:
        return listed([entry for model in pool.names for entry in await entries(model)])

    @router.get("/v1/models/{name:path}")
    async def model(name: str) -> dict[str, Any]:
        found = pool.resolve(name)
        own = {entry["id"]: entry for entry in await entries(found)}
        return own.get(name) or own[found]  # an alias

    @router.get("/v1/speculation")
    async def speculation() -> dict[str, Any]:
        states: dict[str, Any] = {}
        for model in pool.names:
            for replica, body in (await replicas[model].read("/v1/speculation")).items():
                states |= {f"{name}@{replica}": state for name, state in json.loads(body).items()}
        return states

    return router


def _unknown(name: str) -> dict[str, Any]:
    """The entry of a model of which no replica has said anything yet."""
    return {"id": name, "object": "model", "owned_by": "foredraft", "type": "model", "loaded": False}
