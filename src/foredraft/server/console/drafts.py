"""GET /console/models/{name}/drafts: what could draft for a model, and why or why not."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated

import psutil
from fastapi import APIRouter, Depends

from foredraft.engine.draft_choice import Candidate, Room, draft_models, head_in_use, heads
from foredraft.errors import ForedraftError
from foredraft.library import resolve, size_of
from foredraft.server.auth import Caller
from foredraft.server.console.access import reader_of, without_folders
from foredraft.server.console.library import draft_models as drafts_of
from foredraft.server.console.library import same_files
from foredraft.server.console.model_schemas import DraftCandidate, DraftCandidates
from foredraft.server.console.parts import Parts
from foredraft.server.pool import ModelPool
from foredraft.server.settings import ModelSettings, ServerSettings
from foredraft.server.strict_json import strict_router


class Drafts:
    """Judges the models on this computer, by their files."""

    def __init__(self, pool: ModelPool, parts: Parts) -> None:
        self._pool = pool
        self._library = parts.library

    async def read(self, name: str) -> DraftCandidates:
        """Raises ModelNotFoundError, and what reading the model's files raises."""
        found, settings = self._pool.resolve(name), self._pool.settings
        loaded = {name: served.info.size_bytes for name, served in self._pool.loaded.items()}
        return await asyncio.to_thread(self._candidates, found, settings, loaded)

    def _candidates(self, name: str, settings: ServerSettings, loaded: dict[str, int]) -> DraftCandidates:
        model, look = settings.models[name], self._library.look(settings)
        folder, others = look.folder, self._library.others()
        target = look.files.get(model.path) or resolve(model.path, folder, others)
        used = [file for draft in drafts_of(model) if (file := look.files.get(draft)) is not None]
        size = 0 if name in loaded else size_of(target)
        budget = settings.memory_budget_bytes
        room = Room(
            None if budget is None else budget - sum(loaded.values()) - size,
            psutil.virtual_memory().available - size,
        )
        judged = draft_models(target, look.stored, room, others=used)
        return DraftCandidates(
            candidates=[
                *_heads(target, folder, model),
                *(_reply(one, used=any(same_files(one.path, file) for file in used)) for one in judged),
            ]
        )


def _heads(target: Path, folder: Path, model: ModelSettings) -> list[DraftCandidate]:
    """Those of this model, and last those of others; none where they cannot be judged."""
    try:
        found = heads(target, folder)
    except (ForedraftError, OSError):
        return []
    belonging = next((head.path for head in found if head.fits == "fits"), None)
    used = head_in_use(model.speculation(), belonging, folder)
    return [_reply(head, used=head.path == used) for head in found]


def _reply(candidate: Candidate, *, used: bool) -> DraftCandidate:
    return DraftCandidate(
        name=candidate.name,
        value=candidate.value,
        kind="head" if candidate.value is None else "model",
        path=str(candidate.path),
        size_bytes=candidate.size_bytes,
        share=candidate.share,
        fits=candidate.fits,
        code=candidate.code,
        why=candidate.why,
        also=list(candidate.also),
        used=used,
    )


def drafts_router(pool: ModelPool, parts: Parts) -> APIRouter:
    """The route."""
    router, drafts = strict_router(), Drafts(pool, parts)

    @router.get("/console/models/{name:path}/drafts")
    async def candidates(name: str, caller: Annotated[Caller, Depends(reader_of)]) -> DraftCandidates:
        found = await drafts.read(name)
        if caller.admin:
            return found
        hidden = [
            one.model_copy(update={"path": None, "value": one.value and without_folders(one.value)})
            for one in found.candidates
        ]
        return DraftCandidates(candidates=hidden)

    return router
