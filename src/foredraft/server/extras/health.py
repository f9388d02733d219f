"""GET /health: whether the server answers, and without keys what it holds. Never waits for a model."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter

from foredraft.server.pool import ModelPool


def health_router(pool: ModelPool) -> APIRouter:
    """The route, for the models of `pool`."""
    router = APIRouter()

    @router.get("/health")
    async def health() -> dict[str, Any]:
        if pool.settings.keys:  # whoever asks here has shown none: the names are for those who do
            return {"status": "ok"}
        return {"status": "ok", "models": {name: name in pool.loaded for name in pool.names}}

    return router
