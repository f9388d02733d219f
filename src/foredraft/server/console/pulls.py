"""Models from the Hub, and models that are deleted: /console/hub, /console/pulls and /console/stored."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Annotated

from fastapi import APIRouter, Depends, Query

from foredraft.errors import ConfigError, ForedraftError, quoted
from foredraft.library import parse_name, resolve, search, to_remove
from foredraft.server.auth import Caller
from foredraft.server.console.access import admin_of
from foredraft.server.console.events import Shared, Topic
from foredraft.server.console.hub_search import HubSearches
from foredraft.server.console.library import same_files
from foredraft.server.console.model_schemas import HubModel, HubModels, HubVariant, NewPull, Pull, Pulls
from foredraft.server.console.model_settings import ModelEditor
from foredraft.server.console.parts import Parts
from foredraft.server.console.puller import Order
from foredraft.server.console.shapes import Reply
from foredraft.server.pool import ModelPool
from foredraft.server.strict_json import strict_router

MOST_FOUND = 50
"""Repositories to show of a search."""

LONGEST_QUERY = 200


class Downloads:
    """Downloads models into the models folder, serves them, and deletes them."""

    def __init__(self, pool: ModelPool, parts: Parts, editor: ModelEditor) -> None:
        self._pool = pool
        self._parts = parts
        self._editor = editor
        self.shared = Shared(self.read, 0.0)

    async def read(self) -> Pulls:
        """All downloads now."""
        return Pulls(pulls=self._parts.puller.all())

    async def start(self, wanted: NewPull) -> Pull:
        """Raises ConfigError."""
        repository, quantization = parse_name(wanted.model)
        if repository.count("/") != 1 or not repository.isprintable():
            raise ConfigError(
                f"{quoted(repository)} is not the name of a repository.",
                hint="Use OWNER/NAME or OWNER/NAME:QUANT.",
                setting="model",
            )
        loop = asyncio.get_running_loop()

        def finished(path: Path) -> str | None:
            if not wanted.serve:
                return None
            serving: Future[str] = asyncio.run_coroutine_threadsafe(self._serve(path, repository), loop)
            return serving.result()

        folder = self._parts.library.folder(self._pool.settings)
        return self._parts.puller.start(
            Order(repository, quantization, folder, self._parts.hub or None, finished)
        )

    async def _serve(self, path: Path, repository: str) -> str:
        """Add a downloaded model to the settings, unless a configured one uses its files; returns the name.

        Raises ConfigError.
        """
        library, settings = self._parts.library, self._pool.settings
        look = await asyncio.to_thread(library.look, settings, fresh=True)
        for name, model in settings.models.items():
            if (file := look.files.get(model.path)) is not None and same_files(file, path):
                return name
        named = next((model.name for model in look.stored if model.path == path), "")
        try:
            found = await asyncio.to_thread(resolve, named or repository, look.folder, library.others())
        except ForedraftError:
            found = None
        return await self._editor.add(named if found == path else str(path), None, {}, None)

    async def delete(self, name: str) -> None:
        """Delete a model from the models folder. Raises ModelNotFoundError, ConfigError for one that is used,
        or that belongs to another program.
        """
        library, settings = self._parts.library, self._pool.settings
        look = await asyncio.to_thread(library.look, settings, fresh=True)
        [removal] = await asyncio.to_thread(to_remove, [name], look.folder, library.others())
        users = {
            f"the model {quoted(each)}": "Remove that model first."
            for each in look.served_as(removal.model, settings)
        }
        users |= {
            f"the model {quoted(each)}, for which it drafts": "Choose another draft model there first."
            for each in look.drafting_for(removal.model, settings)
        }
        users |= {
            f"the model {quoted(each)}, which sees with its {removal.vision.name}": "Set another one first."
            for each, model in settings.models.items()
            if removal.vision is not None
            and model.mmproj is not None
            and same_files(Path(model.mmproj), removal.vision)
        }
        users |= {
            f"the model {quoted(each)}, which is loaded": "Unload that model first."
            for each, served in self._pool.loaded.items()
            if same_files(Path(served.info.path), removal.model.path)
        }
        for user, hint in users.items():
            raise ConfigError(f"{removal.model.name} is used by {user}.", hint=hint)
        if removal.model.repository and self._parts.puller.pulls(removal.model.repository):
            raise ConfigError(f"{removal.model.name} is being downloaded.", hint="Cancel that first.")
        await asyncio.to_thread(removal.carry_out)
        await asyncio.to_thread(library.look, settings, fresh=True)


def pulls_router(downloads: Downloads, parts: Parts) -> APIRouter:
    """The routes."""
    router, searches = strict_router(), HubSearches()

    @router.get("/console/hub")
    async def hub(
        _caller: Annotated[Caller, Depends(admin_of)],
        query: Annotated[str, Query(min_length=1, max_length=LONGEST_QUERY)],
        limit: Annotated[int, Query(ge=1, le=MOST_FOUND)] = 10,
        safetensors: bool = False,
    ) -> HubModels:
        found = await searches.run(
            partial(search, query, limit=limit, safetensors=safetensors, endpoint=parts.hub or None)
        )
        return HubModels(
            models=[
                HubModel(
                    repository=model.repository,
                    downloads=model.downloads,
                    gated=model.gated,
                    variants=[HubVariant(name=one.name, size_bytes=one.size_bytes) for one in model.variants],
                )
                for model in found
            ]
        )

    @router.get("/console/pulls")
    async def pulls(_caller: Annotated[Caller, Depends(admin_of)]) -> Pulls:
        return await downloads.shared.now()

    @router.post("/console/pulls")
    async def start(body: NewPull, _caller: Annotated[Caller, Depends(admin_of)]) -> Pull:
        return await downloads.start(body)

    @router.post("/console/pulls/{number}/cancel")
    async def cancel(number: str, _caller: Annotated[Caller, Depends(admin_of)]) -> Pull:
        return parts.puller.cancel(number)

    @router.delete("/console/pulls/{number}")
    async def forget(number: str, _caller: Annotated[Caller, Depends(admin_of)]) -> Pull:
        return parts.puller.forget(number)

    @router.post("/console/pulls/{number}/resume")
    async def resume(number: str, _caller: Annotated[Caller, Depends(admin_of)]) -> Pull:
        return parts.puller.resume(number)

    @router.delete("/console/stored/{name:path}", status_code=204)
    async def delete(name: str, _caller: Annotated[Caller, Depends(admin_of)]) -> None:
        await downloads.delete(name)

    return router


def pulls_topic(downloads: Downloads) -> Topic:
    """The downloads, as they go on; the admin's only."""

    async def read(caller: Caller, sent: Reply | None) -> Pulls:
        caller.require_admin()
        return await downloads.shared.recent(caller, sent)

    return Topic("pulls", 0.5, read)
