"""GET /console/models: which models there are, and what they are doing."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import psutil
from fastapi import APIRouter, Depends

from foredraft.config import DEFAULT_CONTEXT
from foredraft.embedding import ModelKind
from foredraft.engine.engine import Engine
from foredraft.engine.model_facts import ModelFacts
from foredraft.errors import CapacityError
from foredraft.library.stored import OWN
from foredraft.server.auth import Caller
from foredraft.server.console.access import reader_of, without_folders
from foredraft.server.console.events import Shared, Topic
from foredraft.server.console.library import Look, facts
from foredraft.server.console.model_schemas import ConfiguredModel, Models, StoredModel
from foredraft.server.console.parts import Parts
from foredraft.server.console.saving import Saving
from foredraft.server.console.shapes import Reply
from foredraft.server.held import Held
from foredraft.server.pool import ModelPool, Served
from foredraft.server.settings import ModelSettings, ServerSettings
from foredraft.server.strict_json import strict_router
from foredraft.server.told import names_of_paths

ENGINE_WAIT_S = 0.25
"""Seconds to wait for an engine during a forward; after that its last state is shown."""


@dataclass(frozen=True, slots=True)
class _State:
    """What an engine says of itself."""

    running: int = 0
    waiting: int = 0
    head: str | None = None
    exact: bool | None = None
    exact_reason: str | None = None


class ModelsView:
    """Reads the state of all models."""

    def __init__(self, pool: ModelPool, parts: Parts, saving: Saving) -> None:
        self._pool = pool
        self._library = parts.library
        self._saving = saving
        self._states: dict[str, _State] = {}
        self._kinds: dict[str, ModelKind | None] = {}
        self.shared = Shared(self.read, 0.9)
        self._boot = time.time() - time.monotonic()

    async def read(self) -> Models:
        """The state of all models now."""
        settings, loaded = self._pool.settings, self._pool.loaded
        await asyncio.gather(*(self._ask(served) for served in self._pool.engines.values()))
        self._states = {name: state for name, state in self._states.items() if name in loaded}
        self._kinds = {name: await self._pool.kind_of(name) for name in settings.models}
        return await asyncio.to_thread(self._reply, settings, loaded)

    async def _ask(self, served: Served) -> None:
        with suppress(TimeoutError, CapacityError):
            async with asyncio.timeout(ENGINE_WAIT_S):
                self._states[served.name] = await served.worker.call(_state_of)

    def _reply(self, settings: ServerSettings, loaded: Mapping[str, Held]) -> Models:
        look = self._library.look(settings)
        own, problem = self._saving.own_names()
        return Models(
            configured=[
                self._configured(name, settings, look, loaded.get(name), in_file=name in own)
                for name in settings.models
            ],
            stored=_stored(settings, look),
            budget_bytes=settings.memory_budget_bytes,
            used_bytes=sum(served.info.held_bytes for served in loaded.values()),
            memory_bytes=psutil.virtual_memory().total,
            folder=str(look.folder),
            file_error=problem,
        )

    def _configured(
        self, name: str, settings: ServerSettings, look: Look, served: Held | None, *, in_file: bool
    ) -> ConfiguredModel:
        model = settings.models[name]
        state, error = self._pool.state_of(name)
        used = None if served is None or served.holders else round(self._boot + served.last_used, 3)
        engine = self._states.get(name, _State()) if served is not None else _State()
        known = None if served else facts(look.files.get(model.path))
        return ConfiguredModel(
            name=name,
            kind=self._kinds.get(name),
            path=model.path,
            aliases=list(model.aliases),
            adapters=[adapter.name for adapter in model.adapters],
            state=state,
            error=error,
            default=name == settings.find_model(None),
            pinned=model.pinned,
            in_file=in_file,
            outdated=self._pool.is_outdated(name),
            speculate=model.speculate,
            draft_model=model.draft_model,
            head=engine.head,
            exact=engine.exact,
            exact_reason=engine.exact_reason,
            running=engine.running,
            waiting=engine.waiting,
            tokens_generated=self._pool.metrics.tokens(name),
            last_used=used,
            context_length=served.info.context_length if served else _context(model, known),
            device=served.info.device if served else None,
            memory_bytes=dict(served.info.memory) if served else {},
            **_figures(served, known),
        )


def _context(model: ModelSettings, known: ModelFacts | None) -> int | None:
    """The tokens of context that the model will have once it is loaded; None if memory decides."""
    trained = known.trained_context if known else 0
    return model.context_length or (trained if trained <= DEFAULT_CONTEXT else 0) or None


def _figures(served: Held | None, found: ModelFacts | None) -> dict[str, Any]:
    """The fields that a model's files tell as well."""
    if served is not None:
        info = served.info
        return {
            "size_bytes": info.held_bytes,
            "architecture": info.architecture,
            "quantization": info.quantization or None,
            "parameters": info.parameters,
            "trained_context": info.trained_context,
        }
    return {
        "size_bytes": found.size_bytes if found else 0,
        "architecture": found.architecture if found else None,
        "quantization": (found.quantization or None) if found else None,
        "parameters": (found.parameters or None) if found else None,
        "trained_context": (found.trained_context or None) if found else None,
    }


def _stored(settings: ServerSettings, look: Look) -> list[StoredModel]:
    return [
        StoredModel(
            name=model.name,
            path=str(model.path),
            size_bytes=model.size_bytes,
            quantization=model.quantization,
            source="foredraft" if model.source in OWN else model.source,
            complete=model.complete,
            removable=model.source in OWN and model.source != "bundled" and not served_as + drafts_for,
            packaged=model.source == "bundled",
            served_as=served_as,
            drafts_for=drafts_for,
        )
        for model in look.stored
        for served_as, drafts_for in [(look.served_as(model, settings), look.drafting_for(model, settings))]
    ]


def _state_of(engine: Engine) -> _State:
    capabilities, head = engine.model.capabilities, engine.setup.head
    return _State(
        engine.running_count,
        engine.waiting_count,
        Path(head).name if head else None,
        capabilities.batch_invariant,
        capabilities.invariance_note,
    )


def for_caller(models: Models, caller: Caller) -> Models:
    """What this caller may see of them."""
    if caller.admin:
        return models
    configured = [
        model.model_copy(
            update={
                "path": None,
                "error": model.error and names_of_paths(model.error),
                "speculate": without_folders(model.speculate),
                "draft_model": model.draft_model and without_folders(model.draft_model),
            }
        )
        for model in models.configured
    ]
    update = {"configured": configured, "stored": [], "folder": None, "file_error": None}
    return models.model_copy(update=update)


def models_topic(view: ModelsView) -> Topic:
    """What GET /console/models answers."""

    async def read(caller: Caller, sent: Reply | None) -> Models:
        return for_caller(await view.shared.recent(caller, sent), caller)

    return Topic("models", 1.0, read)


def models_router(view: ModelsView) -> APIRouter:
    """The route."""
    router = strict_router()

    @router.get("/console/models")
    async def models(caller: Annotated[Caller, Depends(reader_of)]) -> Models:
        return for_caller(await view.shared.now(), caller)

    return router
