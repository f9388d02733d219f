"""GET /metrics, for Prometheus."""

from __future__ import annotations

from fastapi import APIRouter
from fastapi.responses import Response
from prometheus_client import CONTENT_TYPE_LATEST

from foretoken.engine.engine import Engine
from foretoken.server.pool import ModelPool


def metrics_router(pool: ModelPool) -> APIRouter:
    """The route, for the models of `pool`."""
    router = APIRouter()

    @router.get("/metrics", response_model=None)
    async def metrics() -> Response:
        for name, served in pool.loaded.items():
            pool.telemetry.loaded(name, await served.worker.call(load_of))
        return Response(pool.telemetry.exposition(), media_type=CONTENT_TYPE_LATEST)

    return router


def load_of(engine: Engine) -> dict[str, int]:
    """How busy an engine is."""
    return {
        "num_requests_running": engine.running_count,
        "num_requests_waiting": engine.waiting_count,
        "kv_cache_tokens": engine.kv_tokens,
        "preemptions": engine.preemptions,
    }
