"""GET /metrics, for Prometheus."""

from __future__ import annotations

from fastapi import APIRouter
from fastapi.responses import Response
from prometheus_client import CONTENT_TYPE_LATEST

from foretoken.server.pool import ModelPool


def metrics_router(pool: ModelPool) -> APIRouter:
    """The route, for the models of `pool`."""
    router = APIRouter()

    @router.get("/metrics", response_model=None)
    async def metrics() -> Response:
        return Response(pool.telemetry.exposition(), media_type=CONTENT_TYPE_LATEST)

    return router
