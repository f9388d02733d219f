"""API keys: listed with their use, made, limited and removed in the settings file."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends

from foredraft.errors import ConfigError, ForedraftError, quoted
from foredraft.server.auth import Caller, hash_key, new_key
from foredraft.server.console.access import admin_of
from foredraft.server.console.figure_store import Usage
from foredraft.server.console.key_schemas import KeyLimits, KeyRow, Keys, MadeKey, NewKey
from foredraft.server.console.parts import Parts
from foredraft.server.console.saving import FileState, Saving
from foredraft.server.settings import KeySettings
from foredraft.server.settings_edit import add_key, change_key, remove_key
from foredraft.server.strict_json import strict_router


class KeyNotFoundError(ForedraftError):
    """The settings file has no key of this name."""

    code = "key_not_found"
    status = 404


class LastKeyError(ConfigError):
    """The last key cannot be removed while the server runs."""

    code = "last_key"
    status = 409


class KeyEditor:
    """Reads and changes the keys of a server. What changes takes effect with the next request; requests that
    run go on.
    """

    def __init__(self, parts: Parts, saving: Saving) -> None:
        self._book = parts.requests
        self._history = parts.history
        self._saving = saving

    async def read(self) -> Keys:
        """The keys with their use. Raises ConfigError for a file that cannot be read."""
        state = await self._saving.read()
        return Keys(
            version=state.version,
            keys=[self._row(key) for key in state.effective.keys],
            admin_key=state.effective.admin_key_hash is not None,
        )

    def _row(self, key: KeySettings) -> KeyRow:
        usage = self._history.usage().get(key.hash, Usage())
        return KeyRow(
            name=key.name,
            scope=key.effective_scope,
            requests_per_minute=key.requests_per_minute,
            max_concurrent=key.max_concurrent,
            max_priority=key.max_priority,
            requests=usage.requests,
            tokens=usage.tokens,
            running=self._book.running_of(key.hash),
            last_used=usage.last_used,
        )

    async def add(self, new: NewKey) -> MadeKey:
        """Make a key, and an admin key if there is none: the caller is admin only as long as there are no
        keys. Raises ConfigError and SettingsConflictError; then there is no new key.
        """
        key, admin_key = new_key(), new_key()
        settings = KeySettings(hash=hash_key(key), **new.model_dump(exclude={"version"}))

        def edit(state: FileState) -> bool:
            closed, own = state.effective.admin_key_hash is not None, {each.name for each in state.own.keys}
            add_key(
                state.path,
                settings,
                admin_key_hash=None if closed else hash_key(admin_key),
                beside=[each for each in state.effective.keys if each.name not in own],
                when=state.when,
            )
            return closed

        closed = await self._saving.save(edit, new.version)
        return MadeKey(name=new.name, key=key, admin_key=None if closed else admin_key)

    async def change(self, name: str, limits: KeyLimits) -> None:
        """Set all limits of a key. Raises KeyNotFoundError, ConfigError, SettingsConflictError."""
        values = limits.model_dump(exclude={"version"})

        def edit(state: FileState) -> None:
            _check_known(state, name)
            change_key(state.path, name, values, when=state.when)

        await self._saving.save(edit, limits.version)

    async def remove(self, name: str, version: str | None) -> None:
        """Remove a key. Raises KeyNotFoundError, LastKeyError, ConfigError, SettingsConflictError."""

        def edit(state: FileState) -> None:
            _check_known(state, name)
            if len(state.own.keys) == 1:
                raise LastKeyError(
                    "This is the last key: without one anyone who can reach the server could use it.",
                    hint="Make another one first, or stop the server and run "
                    f"'foredraft keys remove {name}'.",
                )
            remove_key(state.path, name, when=state.when)

        await self._saving.save(edit, version)


def _check_known(state: FileState, name: str) -> None:
    """Raises KeyNotFoundError."""
    if name not in {key.name for key in state.own.keys}:
        raise KeyNotFoundError(
            f"The settings file has no key named {quoted(name[:100])}.", hint="Load the page again."
        )


def keys_router(editor: KeyEditor) -> APIRouter:
    """The routes."""
    router = strict_router()

    @router.get("/console/keys")
    async def keys(_caller: Annotated[Caller, Depends(admin_of)]) -> Keys:
        return await editor.read()

    @router.post("/console/keys")
    async def add(body: NewKey, _caller: Annotated[Caller, Depends(admin_of)]) -> MadeKey:
        return await editor.add(body)

    @router.put("/console/keys/{name}")
    async def change(name: str, body: KeyLimits, _caller: Annotated[Caller, Depends(admin_of)]) -> Keys:
        await editor.change(name, body)
        return await editor.read()

    @router.delete("/console/keys/{name}")
    async def remove(
        name: str, _caller: Annotated[Caller, Depends(admin_of)], version: str | None = None
    ) -> Keys:
        await editor.remove(name, version)
        return await editor.read()

    return router
