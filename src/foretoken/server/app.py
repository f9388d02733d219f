"""The application: every surface over one pool of models. Everything it uses is handed in."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import version

from fastapi import FastAPI
from fastapi.middleware.cors import CORSMiddleware

from foretoken.server import errors
from foretoken.server.anthropic.messages import messages_router
from foretoken.server.extras.admin import admin_router
from foretoken.server.extras.health import health_router
from foretoken.server.extras.metrics import metrics_router
from foretoken.server.extras.speculation import speculation_router
from foretoken.server.extras.tokens import token_router
from foretoken.server.gate import Gate
from foretoken.server.openai.chat import chat_router
from foretoken.server.openai.completions import completion_router
from foretoken.server.openai.models import model_router
from foretoken.server.openai.responses import responses_router
from foretoken.server.pool import ModelPool

SWEEP_S = 5.0
"""Seconds between two looks at models that nobody uses."""


def build_app(pool: ModelPool, *, allow_public: bool = False) -> FastAPI:
    """The server around `pool`, which it closes when it ends. `allow_public`: whoever reaches it may use it,
    also without keys and under any name.
    """

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:  # noqa: ARG001
        sweeping = asyncio.create_task(_sweep(pool))
        yield
        sweeping.cancel()
        await pool.close()

    app = FastAPI(title="Foretoken", version=version("foretoken"), lifespan=lifespan, docs_url="/docs")
    errors.install(app)
    app.add_middleware(Gate, settings=pool.settings, allow_public=allow_public)
    # Around the gate: a browser asks first, without the key, and reads no error without these headers.
    if pool.settings.cors_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(pool.settings.cors_origins),
            allow_methods=["*"],
            allow_headers=["*"],
        )
    for make_router in (
        chat_router,
        responses_router,
        completion_router,
        model_router,
        messages_router,
        token_router,
        health_router,
        speculation_router,
        admin_router,
    ):
        app.include_router(make_router(pool))
    if pool.settings.metrics:
        app.include_router(metrics_router(pool))
    return app


async def _sweep(pool: ModelPool) -> None:
    while True:
        await asyncio.sleep(SWEEP_S)
        await pool.sweep()
