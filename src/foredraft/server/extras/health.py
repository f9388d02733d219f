"""GET /health: whether the server is running, and without keys also its models. Never waits for a model."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter

from foredraft.server.pool import ModelPool


def health_router(pool: ModelPool) -> APIRouter:
    """The route for the models of `pool`."""
    router = APIRouter()

    @router.get("/health")
    async def health() -> dict[str, Any]:
        if pool.settings.keys:  # this endpoint needs no key: do not reveal the models
            return {"status": "ok"}
        return {"status": "ok", "models": {name: name in pool.loaded for name in pool.names}}

    return router
