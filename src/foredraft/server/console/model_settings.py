"""The settings of models: read, changed, added and removed in the settings file."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import MISSING, asdict, fields, replace
from pathlib import Path
from typing import Annotated, Any, get_args

from fastapi import APIRouter, Depends

from foredraft.backends.llamacpp.kv_types import KV_TYPES, named_types
from foredraft.config import AUTO, Dtype, parse_speculation
from foredraft.embedding import POOLINGS
from foredraft.engine.model_facts import facts_of
from foredraft.errors import (
    ConfigError,
    ForedraftError,
    ModelNotFoundError,
    SettingsConflictError,
    quoted,
)
from foredraft.library import check_drafts, resolve, stem_of
from foredraft.library.head_kinds import ARCHITECTURES as HEAD_ARCHITECTURES
from foredraft.library.head_kinds import no_model
from foredraft.library.mmproj import NONE as NO_MMPROJ
from foredraft.registry import check_speculation
from foredraft.server import checks
from foredraft.server.auth import Caller
from foredraft.server.console.access import admin_of, reader_of, without_folders
from foredraft.server.console.library import facts
from foredraft.server.console.model_schemas import (
    DefaultModel,
    ModelSettingsChange,
    ModelSettingsReply,
    NewModel,
)
from foredraft.server.console.parts import Parts
from foredraft.server.console.saving import FileState, Saving
from foredraft.server.pool import ModelPool
from foredraft.server.settings import ModelSettings, SamplingDefaults
from foredraft.server.settings_edit import Condition, remove_model, set_default_model, set_model
from foredraft.server.strict_json import strict_router

CHOICES = {
    "memory": ["mmap", "ram"],
    "dtype": list(get_args(Dtype)),
    "kv_type": [AUTO, *KV_TYPES],
    "rope_scaling": [AUTO, "none", "linear", "yarn"],
    "embeddings": [AUTO, *POOLINGS],
}
"""Valid values of the settings that have a list of them; of `kv_type` also two of them, as "K/V"."""

SAMPLING = "sampling"

IN_THE_FILE_ONLY = frozenset(("adapters", "replicas", "max_replicas"))
"""Settings that the page does not show, and that a change leaves as they are in the file."""


class ModelEditor:
    """Reads and changes the settings of models."""

    def __init__(self, pool: ModelPool, parts: Parts, saving: Saving) -> None:
        self._pool = pool
        self._library = parts.library
        self._saving = saving

    async def read(self, name: str) -> ModelSettingsReply:
        """A model's settings, by its name or an alias. Raises ModelNotFoundError, ConfigError."""
        state = await self._saving.read()
        found = _known(state, name)
        model = state.effective.models[found]
        values, defaults = _shown(asdict(model)), defaults_of_models()
        look = await asyncio.to_thread(self._library.look, self._pool.settings)
        known = await asyncio.to_thread(facts, look.files.get(model.path))
        return ModelSettingsReply(
            name=found,
            version=state.version,
            in_file=found in state.own.models,
            values=values,
            defaults=defaults,
            changed=_changed(values, defaults),
            choices=CHOICES,
            recommended=dict(known.recommended) if known else {},
        )

    async def change(self, name: str, values: Mapping[str, Any], version: str) -> ModelSettingsReply:
        """Change some values. Raises ModelNotFoundError, SettingsConflictError, ConfigError."""

        def edit(state: FileState) -> str:
            found = _known(state, name)
            beside = self._saving.would_vanish(state, found)

            def attempt(values: Mapping[str, Any], when: Condition) -> None:
                self._check_named(state, values)
                set_model(state.path, found, values, beside=beside, when=when)

            _whole(attempt, values, state.when)
            return found

        return await self.read(await self._saving.save(edit, version))

    async def add(self, model: str, name: str | None, values: Mapping[str, Any], version: str | None) -> str:
        """Serve another model, under a name of its own if none is given; returns that. Raises
        ModelNotFoundError, SettingsConflictError, ConfigError.
        """
        checks.text("path", model)
        table = {"path": model, **{key: value for key, value in values.items() if key != "path"}}

        def edit(state: FileState) -> str:
            path = self._resolved(state, model)
            chosen = name or _free_name(state, path)
            checks.model_name("name", chosen)
            if state.effective.find_model(chosen) is not None:
                raise ConfigError(
                    f"There is already a model named {quoted(chosen)}.",
                    hint="Choose another name.",
                    setting="name",
                )
            beside = self._saving.would_vanish(state, chosen)

            def attempt(table: Mapping[str, Any], when: Condition) -> None:
                self._check_named(state, {name: value for name, value in table.items() if name != "path"})
                set_model(state.path, chosen, table, beside=beside, when=when)

            _whole(attempt, table, state.when)
            return chosen

        return await self._saving.save(edit, version)

    def _check_named(self, state: FileState, values: Mapping[str, Any]) -> None:
        """Raises ConfigError for what only loading would refuse otherwise: no model, no draft, no
        vision file, no KV type.
        """
        for setting in ("path", "draft_model"):
            if isinstance(named := values.get(setting), str) and named.strip():
                self._resolved(state, named, setting)
        if isinstance(speculate := values.get("speculate"), str):
            with _faults_of("speculate"):
                folder = self._library.folder(state.effective)
                chosen = parse_speculation(speculate)
                check_speculation(chosen)
                check_drafts(chosen, folder, self._library.others())
        if isinstance(mmproj := values.get("mmproj"), str) and mmproj.strip() and mmproj != str(NO_MMPROJ):
            near = state.path.absolute().parent / Path(mmproj).expanduser()
            if not near.is_file():
                raise ConfigError(
                    f"mmproj={quoted(mmproj)} is not valid.",
                    hint="mmproj must be the path of a file, or none.",
                    setting="mmproj",
                )
        if isinstance(kv_type := values.get("kv_type"), str):
            with _faults_of("kv_type"):
                named_types(kv_type)

    def _resolved(self, state: FileState, model: str, setting: str = "path") -> Path:
        """Raises ConfigError for what is no model on this computer."""
        with _faults_of(setting):
            folder = self._library.folder(state.effective)
            near = state.path.absolute().parent / model  # as the settings file reads it
            path = resolve(str(near) if near.is_file() else model, folder, self._library.others())
            found = facts_of(path)
            if found.architecture in HEAD_ARCHITECTURES:
                raise no_model(path)
            if not found.weights:
                raise ConfigError(f"{path.name} has no weights.", hint="Choose the file of a whole model.")
            return path

    async def remove(self, name: str, version: str) -> None:
        """Take a model out of the file. Raises ModelNotFoundError, SettingsConflictError, ConfigError."""

        def edit(state: FileState) -> None:
            found = _known(state, name)
            if found not in state.own.models:
                raise ConfigError(
                    f"{found} is not in the settings file: it comes from the command line.",
                    hint="Start the server without it.",
                )
            remove_model(state.path, found, when=state.when)

        await self._saving.save(edit, version)

    async def make_default(self, name: str | None, version: str) -> None:
        """Have a model answer requests that name none. Raises as `change`."""

        def edit(state: FileState) -> None:
            found = None if name is None else _known(state, name)
            beside = {} if found is None else self._saving.would_vanish(state, found)
            set_default_model(state.path, found, beside=beside, when=state.when)

        await self._saving.save(edit, version)


def _whole(
    attempt: Callable[[Mapping[str, Any], Condition], None], values: Mapping[str, Any], when: Condition
) -> None:
    """Save all values, or none. Raises what `attempt` raises; a ConfigError about one of the values has the
    errors of the others with it, which show when it is tried without those that are wrong.
    """
    try:
        return attempt(values, when)
    except ConfigError as error:
        first = error
    found, left = [first], _without(values, first.setting)
    while left is not None:
        try:
            attempt(left, replace(when, dry=True))
            break
        except ConfigError as error:
            left = None if isinstance(error, SettingsConflictError) else _without(left, error.setting)
            if left is not None:
                found.append(error)
    first.others = tuple(found[1:])
    raise first


def _without(values: Mapping[str, Any], setting: str | None) -> dict[str, Any] | None:
    """The other values; None if that setting is not among them, or nothing is left."""
    name, _, inner = (setting or "").partition(".")
    if name not in values:
        return None
    others = {each: value for each, value in values.items() if each != name}
    if inner and isinstance(values[name], Mapping):
        if inner not in values[name]:
            return None
        others[name] = {each: value for each, value in values[name].items() if each != inner}
    return others


@contextmanager
def _faults_of(setting: str) -> Iterator[None]:
    """What is wrong with what a setting names is an error of that setting. Raises ConfigError."""
    try:
        yield
    except ForedraftError as error:
        raise ConfigError(error.message, hint=error.hint, setting=setting) from None
    except OSError as error:  # such as a name that is too long
        raise ConfigError(f"{setting} cannot be read: {error.strerror}.", setting=setting) from None


def _known(state: FileState, name: str) -> str:
    """The model of that name or alias. Raises ModelNotFoundError."""
    found = state.effective.find_model(name)
    if found is None:
        raise ModelNotFoundError(f"There is no model {quoted(name)}.", hint="Load the page again.")
    return found


def _free_name(state: FileState, path: Path) -> str:
    """The model's own name, which has no spaces in the API; with a number if it is taken."""
    own = "-".join(stem_of(path).split())[: checks.NAME_CHARACTERS - 4] or "model"
    names = [own, *(f"{own}-{number}" for number in range(2, 1000))]
    return next(name for name in names if state.effective.find_model(name) is None)


def defaults_of_models() -> dict[str, Any]:
    """The default of each setting of a model; None for its path, which has none."""
    values = {field.name: field.default for field in fields(ModelSettings) if field.default is not MISSING}
    return _shown({"path": None, **values, SAMPLING: asdict(SamplingDefaults())})


def _shown(values: dict[str, Any]) -> dict[str, Any]:
    return {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in values.items()
        if name not in IN_THE_FILE_ONLY
    }


def _changed(values: Mapping[str, Any], defaults: Mapping[str, Any]) -> list[str]:
    """The names of settings that differ from the defaults, but for the path."""
    names = [name for name in values if name not in ("path", SAMPLING) and values[name] != defaults[name]]
    sampling = [name for name, value in values[SAMPLING].items() if value is not None]
    return names + [f"{SAMPLING}.{name}" for name in sampling]


def model_settings_router(editor: ModelEditor) -> APIRouter:
    """The routes."""
    router = strict_router()

    @router.get("/console/models/{name:path}/settings")
    async def settings(name: str, caller: Annotated[Caller, Depends(reader_of)]) -> ModelSettingsReply:
        found = await editor.read(name)
        if caller.admin:
            return found
        values = {
            each: without_folders(value) if isinstance(value, str) else value
            for each, value in found.values.items()
        }
        return found.model_copy(update={"values": values})

    @router.put("/console/models/{name:path}/settings")
    async def change(
        name: str, body: ModelSettingsChange, _caller: Annotated[Caller, Depends(admin_of)]
    ) -> ModelSettingsReply:
        return await editor.change(name, body.values, body.version)

    @router.post("/console/models")
    async def add(body: NewModel, _caller: Annotated[Caller, Depends(admin_of)]) -> ModelSettingsReply:
        return await editor.read(await editor.add(body.path, body.name, body.values, body.version))

    @router.delete("/console/models/{name:path}", status_code=204)
    async def remove(name: str, version: str, _caller: Annotated[Caller, Depends(admin_of)]) -> None:
        await editor.remove(name, version)

    @router.put("/console/default-model", status_code=204)
    async def default(body: DefaultModel, _caller: Annotated[Caller, Depends(admin_of)]) -> None:
        await editor.make_default(body.name, body.version)

    return router
