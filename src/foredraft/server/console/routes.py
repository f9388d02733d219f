"""All routes of the console."""

from __future__ import annotations

from collections.abc import Mapping

from fastapi import APIRouter

from foredraft.server.console.benchmarks import (
    BenchmarkRunner,
    benchmark_runner,
    benchmarks_router,
    benchmarks_topic,
)
from foredraft.server.console.drafts import drafts_router
from foredraft.server.console.events import Shared, Topic, events_router
from foredraft.server.console.image_editor import images_router
from foredraft.server.console.keys import KeyEditor, keys_router
from foredraft.server.console.log import log_router, log_topic
from foredraft.server.console.model_settings import ModelEditor, model_settings_router
from foredraft.server.console.models import ModelsView, models_router, models_topic
from foredraft.server.console.overview import LiveOverview, overview_router
from foredraft.server.console.parts import Parts
from foredraft.server.console.pulls import Downloads, pulls_router, pulls_topic
from foredraft.server.console.requests import requests_router, requests_topic
from foredraft.server.console.saving import Saving
from foredraft.server.console.session import session_router
from foredraft.server.extras.speculation import states_of
from foredraft.server.pool import ModelPool


def console_routers(pool: ModelPool, parts: Parts) -> list[APIRouter]:
    """The routers of the console, for the application."""
    runner = benchmark_runner(pool, parts)
    assert parts.live is not None, "build_app makes one"
    saving = Saving(pool, parts.live)
    editor, view = ModelEditor(pool, parts, saving), ModelsView(pool, parts, saving)
    downloads = Downloads(pool, parts, editor)
    return [
        session_router(pool, parts),
        requests_router(pool, parts),
        log_router(pool, parts),
        model_settings_router(editor),
        models_router(view),
        drafts_router(pool, parts),
        pulls_router(downloads, parts),
        benchmarks_router(runner),
        keys_router(KeyEditor(parts, saving)),
        images_router(saving),
        overview_router(pool, parts),
        events_router(pool, console_topics(pool, parts, view, downloads, runner)),
    ]


def console_topics(
    pool: ModelPool, parts: Parts, view: ModelsView, downloads: Downloads, runner: BenchmarkRunner
) -> Mapping[str, Topic]:
    """What GET /console/events can follow, by name."""
    topics = [
        Topic("overview", 1.0, LiveOverview(parts.history).read),
        Topic("speculation", 1.0, Shared(lambda: states_of(pool), 0.9).recent),
        pulls_topic(downloads),
        models_topic(view),
        requests_topic(parts),
        benchmarks_topic(runner),
        log_topic(parts),
    ]
    return {topic.name: topic for topic in topics}
