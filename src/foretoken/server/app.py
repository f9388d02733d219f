"""The application: every surface over one pool of models. Everything it uses is handed in."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import version

from fastapi import FastAPI

from foretoken.server import errors
from foretoken.server.extras.health import health_router
from foretoken.server.extras.metrics import metrics_router
from foretoken.server.extras.speculation import speculation_router
from foretoken.server.extras.tokens import token_router
from foretoken.server.openai.chat import chat_router
from foretoken.server.openai.completions import completion_router
from foretoken.server.openai.models import model_router
from foretoken.server.pool import ModelPool


def build_app(pool: ModelPool) -> FastAPI:
    """The server around `pool`, which it closes when it ends."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:  # noqa: ARG001
        yield
        await pool.close()

    app = FastAPI(title="Foretoken", version=version("foretoken"), lifespan=lifespan, docs_url="/docs")
    errors.install(app)
    for make_router in (
        chat_router,
        completion_router,
        model_router,
        token_router,
        health_router,
        metrics_router,
        speculation_router,
    ):
        app.include_router(make_router(pool))
    return app
