"""GET /console/log: the last lines of what the server logs, for the admin."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Query

from foredraft.server.auth import Caller
from foredraft.server.console.access import admin_of
from foredraft.server.console.events import Topic
from foredraft.server.console.parts import Parts
from foredraft.server.console.request_schemas import Log
from foredraft.server.console.shapes import Reply
from foredraft.server.pool import ModelPool
from foredraft.server.strict_json import strict_router


def log_router(pool: ModelPool, parts: Parts) -> APIRouter:  # noqa: ARG001 - as all router factories
    """The route."""
    router = strict_router()

    @router.get("/console/log")
    async def log(
        caller: Annotated[Caller, Depends(admin_of)],  # noqa: ARG001
        after: Annotated[int, Query(ge=0, description="The number of the last line that is known.")] = 0,
    ) -> Log:
        return Log(lines=parts.log.lines(after))

    return router


def log_topic(parts: Parts) -> Topic:
    """All lines that are kept, and then those that come; the admin's only."""

    async def read(caller: Caller, sent: Reply | None) -> Log | None:
        caller.require_admin()
        known = sent.lines[-1].number if isinstance(sent, Log) and sent.lines else 0
        lines = parts.log.lines(known)
        return Log(lines=lines, whole=sent is None) if lines or sent is None else None

    return Topic("log", 1.0, read)
