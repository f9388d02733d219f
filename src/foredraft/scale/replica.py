"""A replica: one model with an engine of its own, behind every API."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace

from foredraft.errors import BackendError
from foredraft.scale.driving import Notes, answer
from foredraft.scale.message import Forwarded, Parts
from foredraft.server.allocator import give_back_large_blocks
from foredraft.server.app import api_app
from foredraft.server.auth import Caller
from foredraft.server.gate import Admitted
from foredraft.server.metrics import metrics_router
from foredraft.server.pool import ModelPool
from foredraft.server.request_log import RequestLog
from foredraft.server.settings import LOCAL_CALLER, ServerSettings


def only(settings: ServerSettings, name: str) -> ServerSettings:
    """The settings of a server with this one of its models, which stays in memory."""
    alone = replace(settings, models={name: replace(settings.models[name], pinned=True)}, default_model=None)
    own = settings.default_model is not None and settings.find_model(settings.default_model) == name
    return replace(alone, default_model=settings.default_model) if own else alone


class Replica:
    """Answers what the front has let in, with the one model of `pool`. `start` before the first request."""

    def __init__(self, pool: ModelPool) -> None:
        self.pool = pool
        [self.name] = pool.names
        self._app = replica_app(pool)

    async def start(self) -> None:
        """Load the model. Raises what that raises."""
        give_back_large_blocks()
        await self.pool.get(self.name)

    async def answer(
        self, asked: Forwarded, gone: asyncio.Event | None = None
    ) -> AsyncGenerator[Parts, None]:
        """The reply (see `driving.answer`)."""
        async with aclosing(answer(self._app, asked, gone)) as reply:
            async for parts in reply:
                yield parts

    async def read(self, path: str) -> bytes:
        """The body of the answer to GET, for the front itself."""
        asked = Forwarded("GET", path, b"", (), b"", Caller(LOCAL_CALLER, ""))
        body = b""
        async for parts in self.answer(asked):
            for part in parts:
                if isinstance(part, dict):
                    body += part.get("body", b"")
        return body

    def check_health(self) -> None:
        """Raises BackendError if the engine has stopped and the next request could not load it again."""
        state, reason = self.pool.state_of(self.name)
        if state == "failed" and self.name not in self.pool.loaded:
            raise BackendError(reason or "The engine has stopped.")

    async def close(self) -> None:
        """End all requests and free the model."""
        await self.pool.close()


def replica_app(pool: ModelPool) -> RequestLog:
    """Every API over `pool`, for requests that the front has checked, and without what is the front's."""

    @asynccontextmanager
    async def alive() -> AsyncGenerator[None, None]:  # the replica begins and ends it
        yield

    return RequestLog(Admitted(api_app(pool, alive, [metrics_router(pool)])), books=[Notes()])
