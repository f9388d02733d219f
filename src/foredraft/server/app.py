"""The application: every API over one pool of models. All its parts are passed in."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from functools import partial
from importlib.metadata import version

from fastapi import APIRouter, FastAPI
from fastapi.middleware.cors import CORSMiddleware

from foredraft.server import errors
from foredraft.server.anthropic.messages import messages_router
from foredraft.server.console.parts import Parts
from foredraft.server.console.routes import console_routers
from foredraft.server.embedding.embeddings import embeddings_router
from foredraft.server.embedding.rerank import rerank_router
from foredraft.server.extras.admin import admin_router
from foredraft.server.extras.health import health_router
from foredraft.server.extras.speculation import speculation_router
from foredraft.server.extras.tokens import token_router
from foredraft.server.gate import Gate
from foredraft.server.idle_training import IdleTraining
from foredraft.server.metrics import metrics_router
from foredraft.server.openai.chat import chat_router
from foredraft.server.openai.completions import completion_router
from foredraft.server.openai.models import model_router
from foredraft.server.openai.responses import responses_router
from foredraft.server.openapi import documented
from foredraft.server.page.built import page_router
from foredraft.server.page.docs import docs_router
from foredraft.server.pool import ModelPool
from foredraft.server.rates import Admit
from foredraft.server.request_log import SHOWN, Book, RequestLog
from foredraft.server.settings import ServerSettings
from foredraft.server.taking import Reload, beside, take_settings
from foredraft.server.telemetry import Telemetry

SWEEP_S = 2.0
"""Seconds between checks for idle models and a changed settings file."""

ROUTERS = (
    chat_router,
    responses_router,
    completion_router,
    embeddings_router,
    rerank_router,
    model_router,
    messages_router,
    token_router,
    health_router,
    speculation_router,
    admin_router,
)
"""What makes the routes of every API, for a pool of models."""

logger = logging.getLogger(__name__)


def build_app(
    pool: ModelPool,
    *,
    allow_public: bool = False,
    reload: Reload | None = None,
    training: IdleTraining | None = None,
    console: Parts | None = None,
    telemetry: Telemetry | None = None,
) -> FastAPI:
    """The server around `pool`, which is closed at shutdown. `allow_public`: accept requests without keys and
    with any Host header. `reload` is called every few seconds. `training` runs while there are no
    requests. `console`: what the console works with. `telemetry` exports spans of requests, and is closed
    at shutdown.
    """
    parts = console or Parts()
    live = parts.live or beside(parts.settings_file, pool.settings)
    parts, pool.where = replace(parts, live=live), live.where
    app = api_app(pool, lambda: _alive(pool, parts, reload, training, telemetry))
    for router in console_routers(pool, parts):
        app.include_router(router)
    app.include_router(page_router())
    if pool.settings.metrics:
        app.include_router(metrics_router(pool))
    pool.metrics.observers.append(parts.history)
    books: list[Book] = [parts.requests, *([telemetry] if telemetry else [])]
    guard(app, lambda: pool.settings, books, allow_public=allow_public)
    return app


def api_app(
    pool: ModelPool, alive: Callable[[], AbstractAsyncContextManager[None]], first: Iterable[APIRouter] = ()
) -> FastAPI:
    """Every API over `pool`, and its description. Nothing checks the requests yet, and they have no visit
    (`caller.Visit`). `alive` is entered while the application runs; the routes of `first` come before the
    others.
    """
    app = FastAPI(
        title="Foredraft",
        version=version("foredraft"),
        lifespan=lambda _: alive(),
        redirect_slashes=False,
        docs_url=None,
        redoc_url=None,
    )
    errors.install(app)
    app.openapi = partial(documented, app.openapi, lambda: pool.settings.limits)  # type: ignore[method-assign]
    for router in (*first, *(make_router(pool) for make_router in ROUTERS), docs_router()):
        app.include_router(router)
    return app


def guard(
    app: FastAPI,
    current: Callable[[], ServerSettings],
    books: Sequence[Book],
    *,
    allow_public: bool,
    admit: Admit | None = None,
) -> None:
    """Let the gate (`Gate`) check every request, with the settings that `current` returns, and `books` note
    it.
    """
    app.add_middleware(Gate, current=current, allow_public=allow_public, admit=admit)
    # Outside the gate: a browser's preflight request has no key, and errors need these headers to be
    # readable.
    if origins := current().cors_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(origins),
            allow_methods=["*"],
            allow_headers=["*"],
            expose_headers=SHOWN,
            allow_private_network=True,  # listed origins on the internet may call this machine
        )
    app.add_middleware(RequestLog, books=books)


@asynccontextmanager
async def _alive(
    pool: ModelPool,
    parts: Parts,
    reload: Reload | None,
    training: IdleTraining | None,
    telemetry: Telemetry | None,
) -> AsyncIterator[None]:
    """What happens beside requests, from the start of the server to its end."""
    with parts.log.listening():
        sweeping = asyncio.create_task(_maintain(pool, reload, training))
        noting = asyncio.create_task(parts.history.run())
        if training is not None:
            pool.on_request = training.request
        yield
        sweeping.cancel()
        parts.puller.close()
        if training is not None:
            await asyncio.to_thread(training.close)
        await pool.close()
        noting.cancel()
        await parts.history.close()
        if telemetry is not None:
            await asyncio.to_thread(telemetry.close)


async def _maintain(pool: ModelPool, reload: Reload | None, training: IdleTraining | None) -> None:
    """Unload idle models, apply new settings, and train while nothing is asked."""
    while True:
        await asyncio.sleep(SWEEP_S)
        try:
            if reload is not None:
                take_settings(pool, reload())
            await pool.sweep()
            if training is not None:
                training.check(busy=pool.busy)
        except Exception:
            logger.exception("Checking models and settings failed; it will be tried again.")
