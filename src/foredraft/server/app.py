"""The application: every API over one pool of models. All its parts are passed in."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from importlib.metadata import version

from fastapi import FastAPI
from fastapi.middleware.cors import CORSMiddleware

from foredraft.errors import ConfigError
from foredraft.server import errors
from foredraft.server.anthropic.messages import messages_router
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
from foredraft.server.page.docs import docs_router
from foredraft.server.page.status import page_router
from foredraft.server.pool import ModelPool
from foredraft.server.request_log import SHOWN, RequestLog
from foredraft.server.settings import ServerSettings
from foredraft.server.settings_file import diff

SWEEP_S = 2.0
"""Seconds between checks for idle models and a changed settings file."""

logger = logging.getLogger(__name__)


Reload = Callable[[], ServerSettings | ConfigError | None]
"""Returns new settings, the error that makes them unusable, or None if nothing changed."""


def build_app(
    pool: ModelPool,
    *,
    allow_public: bool = False,
    reload: Reload | None = None,
    training: IdleTraining | None = None,
) -> FastAPI:
    """The server around `pool`, which is closed at shutdown. `allow_public`: accept requests without keys and
    with any Host header. `reload` is called every few seconds. `training` runs while there are no
    requests.
    """
    app = FastAPI(
        title="Foredraft",
        version=version("foredraft"),
        lifespan=lambda _: _alive(pool, reload, training),
        redirect_slashes=False,
        docs_url=None,
        redoc_url=None,
    )
    errors.install(app)
    app.openapi = partial(documented, app.openapi, lambda: pool.settings.limits)  # type: ignore[method-assign]
    app.add_middleware(Gate, current=lambda: pool.settings, allow_public=allow_public)
    # Outside the gate: a browser's preflight request has no key, and errors need these headers to be
    # readable.
    if pool.settings.cors_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(pool.settings.cors_origins),
            allow_methods=["*"],
            allow_headers=["*"],
            expose_headers=SHOWN,
            allow_private_network=True,  # listed origins on the internet may call this machine
        )
    app.add_middleware(RequestLog)
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
    app.include_router(page_router())
    app.include_router(docs_router())
    if pool.settings.metrics:
        app.include_router(metrics_router(pool))
    return app


@asynccontextmanager
async def _alive(
    pool: ModelPool, reload: Reload | None, training: IdleTraining | None
) -> AsyncIterator[None]:
    """What happens beside requests, from the start of the server to its end."""
    sweeping = asyncio.create_task(_maintain(pool, reload, training))
    if training is not None:
        pool.on_request = training.request
    yield
    sweeping.cancel()
    if training is not None:
        await asyncio.to_thread(training.close)
    await pool.close()


async def _maintain(pool: ModelPool, reload: Reload | None, training: IdleTraining | None) -> None:
    """Unload idle models, apply new settings, and train while nothing is asked."""
    while True:
        await asyncio.sleep(SWEEP_S)
        try:
            if reload is not None:
                _take(pool, reload())
            await pool.sweep()
            if training is not None:
                training.check(busy=pool.busy)
        except Exception:
            logger.exception("Checking models and settings failed; it will be tried again.")


def _take(pool: ModelPool, found: ServerSettings | ConfigError | None) -> None:
    if isinstance(found, ConfigError):
        logger.warning("The settings were not changed. %s", found)
    elif found is not None:
        change = diff(pool.settings, found)
        pool.use(found)
        for what, names in (
            ("new models", change.added),
            ("removed models", change.removed),
            ("changed models", change.changed),
            ("changed settings", change.live),
        ):
            if names:
                logger.info("Settings reloaded; %s: %s", what, ", ".join(names))
        if change.restart:
            logger.warning("Restart the server to change %s.", ", ".join(change.restart))
