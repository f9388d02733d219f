"""POST /v1/models/{name}/load and /unload, for the admin."""

from __future__ import annotations

from typing import Annotated, Any, TypeAlias

from fastapi import APIRouter, Depends
from pydantic import ConfigDict

from foredraft.server.auth import Caller
from foredraft.server.console.access import admin_of
from foredraft.server.openai.schemas import Body
from foredraft.server.pool import ModelPool
from foredraft.server.strict_json import strict_router

Admin: TypeAlias = Annotated[Caller, Depends(admin_of)]


class NoFields(Body):
    """An empty body, which may be left out."""

    model_config = ConfigDict(extra="forbid")


def admin_router(pool: ModelPool) -> APIRouter:
    """The routes for the models of `pool`."""
    router = strict_router()

    @router.post("/v1/models/{name:path}/load")
    async def load(name: str, _caller: Admin, body: NoFields | None = None) -> dict[str, Any]:  # noqa: ARG001 - checked
        served = await pool.get(pool.resolve(name))
        return {"id": served.name, "loaded": True}

    @router.post("/v1/models/{name:path}/unload")
    async def unload(name: str, _caller: Admin, body: NoFields | None = None) -> dict[str, Any]:  # noqa: ARG001 - checked
        was_loaded = await pool.unload(name)
        return {"id": pool.resolve(name), "loaded": False, "was_loaded": was_loaded}

    return router
