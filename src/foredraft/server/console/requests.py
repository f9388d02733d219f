"""GET /console/requests, one request with its texts, stopping one, and PUT /console/recording."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends

from foredraft.errors import ForedraftError
from foredraft.server.auth import Caller
from foredraft.server.console.access import admin_of, reader_of
from foredraft.server.console.events import Topic
from foredraft.server.console.parts import Parts
from foredraft.server.console.request_schemas import Recording, RequestRow, Requests
from foredraft.server.console.shapes import Reply
from foredraft.server.pool import ModelPool
from foredraft.server.strict_json import strict_router


class RequestNotFoundError(ForedraftError):
    """There is no request of this id, or it is another key's."""

    code = "request_not_found"
    status = 404


def requests_router(pool: ModelPool, parts: Parts) -> APIRouter:  # noqa: ARG001 - as all router factories
    """The routes."""
    router, book = strict_router(), parts.requests

    @router.get("/console/requests")
    async def requests(caller: Annotated[Caller, Depends(reader_of)]) -> Requests:
        return book.requests(caller)

    @router.get("/console/requests/{request_id}")
    async def request(request_id: str, caller: Annotated[Caller, Depends(reader_of)]) -> RequestRow:
        found = book.find(request_id, caller)
        if found is None:
            raise _unknown(request_id)
        return found

    @router.post("/console/requests/{request_id}/stop")
    async def stop(request_id: str, caller: Annotated[Caller, Depends(reader_of)]) -> RequestRow:
        found = book.find(request_id, caller) if book.stop(request_id, caller) else None
        if found is None:
            raise _unknown(request_id)
        return found

    @router.put("/console/recording")
    async def recording(body: Recording, caller: Annotated[Caller, Depends(admin_of)]) -> Recording:  # noqa: ARG001
        book.recording = body.on
        return body

    return router


def requests_topic(parts: Parts) -> Topic:
    """What the caller may see of the requests; after the first event only what has changed, since hundreds of
    rows a second would take time from the model.
    """

    async def read(caller: Caller, sent: Reply | None) -> Requests | None:
        return parts.requests.news(caller, sent if isinstance(sent, Requests) else None)

    return Topic("requests", 1.0, read)


def _unknown(request_id: str) -> RequestNotFoundError:
    return RequestNotFoundError(
        f"There is no request {request_id[:128]!r} of yours here.",
        hint="It may have ended: only running requests can be stopped, and the last ones are kept.",
    )
