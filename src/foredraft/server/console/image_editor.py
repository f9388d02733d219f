"""The settings [images]: read, and changed in the settings file, in effect with the next request."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

from fastapi import APIRouter, Depends

from foredraft.server.auth import Caller
from foredraft.server.console.access import admin_of
from foredraft.server.console.image_schemas import ImagesChange, ImagesReply, ImageValues
from foredraft.server.console.saving import FileState, Saving
from foredraft.server.image_settings import ImageSettings
from foredraft.server.settings_edit import set_images
from foredraft.server.strict_json import strict_router


def images_router(saving: Saving) -> APIRouter:
    """The routes."""
    router = strict_router()

    async def reply() -> ImagesReply:
        state = await saving.read()
        return ImagesReply(
            version=state.version,
            values=_values(state.effective.images),
            defaults=_values(ImageSettings()),
        )

    @router.get("/console/images")
    async def images(_caller: Annotated[Caller, Depends(admin_of)]) -> ImagesReply:
        return await reply()

    @router.put("/console/images")
    async def change(body: ImagesChange, _caller: Annotated[Caller, Depends(admin_of)]) -> ImagesReply:
        def edit(state: FileState) -> None:
            now = _values(state.effective.images).model_dump()
            wanted = body.model_dump(exclude={"version"})
            changed = {name: value for name, value in wanted.items() if value != now[name]}
            set_images(state.path, changed, when=state.when)

        await saving.save(edit, body.version)
        return await reply()

    return router


def _values(settings: ImageSettings) -> ImageValues:
    return ImageValues(**asdict(settings) | {"folders": [str(folder) for folder in settings.folders]})
