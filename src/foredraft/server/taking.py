"""New settings for a server that runs: from its file, with what the command line adds."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias

from foredraft.errors import ConfigError
from foredraft.server.pool import ModelPool
from foredraft.server.settings import ServerSettings
from foredraft.server.settings_file import SettingsWatcher, diff, until_restart

logger = logging.getLogger(__name__)

Reload: TypeAlias = Callable[[], ServerSettings | ConfigError | None]
"""Returns new settings, the error that makes them unusable, or None if nothing changed."""

Overlay: TypeAlias = Callable[[ServerSettings], ServerSettings]
"""Adds to the settings of the file what runs beside them."""


class LiveSettings:
    """The settings of a server: those of the file, and what `overlay` makes of them. A file of which it can
    make nothing is as wrong as one that cannot be read.

    Creating them reads the file and raises ConfigError; without `must_exist` the file may be missing, and
    come later.
    """

    def __init__(self, path: Path, overlay: Overlay, *, must_exist: bool = True) -> None:
        self.path = path
        self.overlay = overlay
        self._watcher = SettingsWatcher(path, must_exist=must_exist, check=overlay)

    @property
    def current(self) -> ServerSettings:
        """The last valid ones. Raises what `overlay` raises."""
        return self.overlay(self._watcher.current)

    def of(self, own: ServerSettings) -> ServerSettings:
        """What the server makes of these settings of the file. Raises ConfigError if all keys are gone, and
        what `overlay` raises.
        """
        self._watcher.check_still_closed(own)
        return self.overlay(own)

    def where(self, model: str) -> str:
        """Where the settings of a model are, for errors: the file and its table, or the name of another."""
        table = f"{self.path}, [models.{model}]"
        return table if model in self._watcher.current.models else f"Model {model}"

    def poll(self) -> ServerSettings | ConfigError | None:
        """New ones, once an edit of the file has settled; as `Reload`."""
        return self._made(self._watcher.poll())

    def reread(self) -> ServerSettings | ConfigError | None:
        """The same of the file as it is now; `poll` then finds nothing new."""
        return self._made(self._watcher.reread())

    def _made(self, found: ServerSettings | ConfigError | None) -> ServerSettings | ConfigError | None:
        return self.overlay(found) if isinstance(found, ServerSettings) else found

    def check_not_lost(self, own: ServerSettings) -> None:
        """Raises SettingsConflictError if these settings of the file are none, and it had some."""
        self._watcher.check_not_lost(own)


def beside(path: Path, first: ServerSettings) -> LiveSettings:
    """Those of a server that began with settings from elsewhere, as in a program: they stay where the file
    says nothing. Raises ConfigError.
    """

    def overlay(settings: ServerSettings) -> ServerSettings:
        return replace(
            until_restart(first, settings),
            models={**first.models, **settings.models},
            keys=settings.keys or first.keys,
            admin_key_hash=settings.admin_key_hash or first.admin_key_hash,
        )

    return LiveSettings(path, overlay, must_exist=False)


def take_settings(pool: ModelPool, found: ServerSettings | ConfigError | None) -> None:
    """Apply new settings but for those that need a restart, and log what has changed, or why nothing has."""
    if isinstance(found, ConfigError):
        logger.warning("The settings were not changed. %s", found)
    elif found is not None:
        change = diff(pool.settings, found)
        pool.use(until_restart(pool.settings, found))
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
