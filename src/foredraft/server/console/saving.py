"""Changes of the settings file by the console, which take effect at once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from foredraft.errors import ConfigError, SettingsConflictError
from foredraft.server.pool import ModelPool
from foredraft.server.settings import ModelSettings, ServerSettings
from foredraft.server.settings_edit import Condition, read_file
from foredraft.server.settings_file import parse_settings, until_restart
from foredraft.server.taking import LiveSettings, take_settings

Result = TypeVar("Result")

TRIES = 5
"""How often a change is tried again if the file changes at the same moment."""


@dataclass(frozen=True, slots=True)
class FileState:
    """The settings file at one moment: its version, its own settings, and those that the server makes of
    them. `when`: the condition of a change that is made to this state.
    """

    path: Path
    version: str
    own: ServerSettings
    effective: ServerSettings
    when: Condition


class Saving:
    """Reads and changes the settings file of a server: one change after another."""

    def __init__(self, pool: ModelPool, live: LiveSettings) -> None:
        self._pool = pool
        self._live = live
        self._saving = asyncio.Lock()

    @property
    def path(self) -> Path:
        """The settings file."""
        return self._live.path

    async def read(self) -> FileState:
        """Raises ConfigError for a file that cannot be read, or is invalid."""
        return await asyncio.to_thread(self._state)

    def _state(self) -> FileState:
        text, version = read_file(self.path)
        try:
            own = parse_settings(text, self.path)
        except ConfigError as error:
            error.setting = None  # nothing that was sent is wrong
            raise
        effective = until_restart(self._pool.settings, self._live.of(own))
        return FileState(self.path, version, own, effective, Condition(version, self._live.of))

    def own_names(self) -> tuple[frozenset[str], str | None]:
        """The models in the file; none and why, if it is invalid. Blocks."""
        try:
            return frozenset(self._state().own.models), None
        except ConfigError as error:
            return frozenset(), str(error)

    def would_vanish(self, state: FileState, name: str) -> dict[str, ModelSettings]:
        """The models that are served without being in the file, and would not be any more if it had one
        called `name`; and that model itself, if it is served so.
        """
        new = {**state.own.models, name: ModelSettings(path="-")}
        after = self._live.overlay(replace(state.own, models=new)).models
        return {
            each: model
            for each, model in state.effective.models.items()
            if each not in state.own.models and (each == name or each not in after)
        }

    async def save(self, edit: Callable[[FileState], Result], version: str | None = None) -> Result:
        """Run `edit`, which changes the file as it is now, on a thread, and apply what the file then says.
        `version`: of the file that was shown; None goes on with whichever there is, also after a change by
        another process. Raises what `edit` raises, ConfigError, SettingsConflictError.
        """
        async with self._saving:
            result = await asyncio.to_thread(self._edited, edit, version)
            take_settings(self._pool, self._live.reread())
            return result

    def _edited(self, edit: Callable[[FileState], Result], version: str | None) -> Result:
        for left in reversed(range(TRIES)):
            state = self._state()
            self._live.check_not_lost(state.own)
            if version is not None:
                state = replace(state, when=replace(state.when, version=version))
            try:
                return edit(state)
            except SettingsConflictError:
                if version is not None or not left:
                    raise
        raise AssertionError("a try returns or raises")
