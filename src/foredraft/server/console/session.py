"""GET /console/session."""

from __future__ import annotations

from importlib.metadata import version
from typing import Annotated

from fastapi import APIRouter, Depends

from foredraft.server.auth import Caller
from foredraft.server.console.access import reader_of
from foredraft.server.console.parts import Parts
from foredraft.server.console.session_schemas import Session
from foredraft.server.pool import ModelPool
from foredraft.server.strict_json import strict_router


def session_router(pool: ModelPool, parts: Parts) -> APIRouter:
    """The route."""
    router = strict_router()

    @router.get("/console/session")
    async def session(caller: Annotated[Caller, Depends(reader_of)]) -> Session:
        settings = pool.settings
        return Session(
            caller=caller.name,
            admin=caller.admin,
            open=not settings.keys,
            admin_key=settings.admin_key_hash is not None,
            version=version("foredraft"),
            settings_file=str(parts.settings_file.absolute()) if caller.admin else None,
            recording=parts.requests.recording,
            started=parts.started,
        )

    return router
