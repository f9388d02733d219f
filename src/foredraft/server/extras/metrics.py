"""GET /metrics, for Prometheus."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from fastapi import APIRouter
from fastapi.responses import Response
from prometheus_client import CONTENT_TYPE_LATEST

from foredraft.engine.engine import Engine
from foredraft.errors import CapacityError
from foredraft.server.pool import ModelPool

PATIENCE_S = 0.25
"""Seconds that a scrape waits for an engine during a forward; after that its last values are used."""


def metrics_router(pool: ModelPool) -> APIRouter:
    """The route for the models of `pool`."""
    router = APIRouter()

    @router.get("/metrics", response_model=None)
    async def metrics() -> Response:
        for name, served in pool.loaded.items():
            with suppress(TimeoutError, CapacityError):
                async with asyncio.timeout(PATIENCE_S):
                    pool.telemetry.loaded(name, await served.worker.call(load_of), served.info.memory)
        return Response(pool.telemetry.exposition(), media_type=CONTENT_TYPE_LATEST)

    return router


def load_of(engine: Engine) -> dict[str, int]:
    """The engine's current load."""
    return {
        "num_requests_running": engine.running_count,
        "num_requests_waiting": engine.waiting_count,
        "kv_cache_tokens": engine.kv_tokens,
        "prefix_cache_tokens": engine.kept_tokens,
        "preemptions": engine.preemptions,
    }
