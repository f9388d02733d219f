"""The settings of a front, of which the keys, with their limits, follow the settings file while it runs."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

from foredraft.errors import ConfigError
from foredraft.server.settings import ServerSettings
from foredraft.server.settings_file import SettingsChange, SettingsWatcher, diff

logger = logging.getLogger("foredraft.server.scale")

FOLLOWED = ("keys", "admin_key_hash")
"""Settings that the front reads again from an edited file. All others are in the replicas, too."""


class Following:
    """`first`: the settings of the deployment. `path`: their file on the machine of the front, where it need
    not be; it is taken once it is there.
    """

    def __init__(self, first: ServerSettings, path: Path | None) -> None:
        self._first = first
        self._path = path
        self._watcher: SettingsWatcher | None = None
        self._said = ""

    def start(self) -> ServerSettings:
        """The settings to begin with: a front that is started again must not accept keys that have been
        revoked since the deployment.
        """
        found = self.poll()
        if isinstance(found, ConfigError):
            logger.warning("The settings of the deployment are used. %s", found)
        elif self._path is not None and self._watcher is None and self._first.keys:
            logger.warning("%s is not on this machine: a change of keys needs a new deployment.", self._path)
        return found if isinstance(found, ServerSettings) else self._first

    def poll(self) -> ServerSettings | ConfigError | None:
        """New ones, once an edit of the file has settled; as `taking.Reload`."""
        if self._watcher is not None:
            before = self._watcher.current
            found = self._watcher.poll()
            if not isinstance(found, ServerSettings):
                return found
            warn_of(diff(before, found))
            return self._taken(found)
        if self._path is None or not self._path.exists():
            return None
        try:
            self._watcher = SettingsWatcher(self._path, check=self._check)
            self._check(self._watcher.current)
            return self._taken(self._watcher.current)
        except ConfigError as error:
            self._watcher = None
            said, self._said = self._said, str(error)
            return None if said == self._said else error

    def _check(self, found: ServerSettings) -> None:
        """Raises ConfigError if the deployment has keys and the file has none."""
        if self._first.keys and not found.keys:
            raise ConfigError(
                f"{self._path} no longer has any keys: without keys anyone could use this server.",
                hint="The old keys stay valid. To remove all keys, deploy again.",
            )

    def _taken(self, found: ServerSettings) -> ServerSettings:
        return replace(self._first, **{name: getattr(found, name) for name in FOLLOWED})


def warn_of(change: SettingsChange) -> None:
    """Say what of an edit the front does not take."""
    others = [name for name in (*change.live, *change.restart) if name not in FOLLOWED]
    models = [*change.added, *change.removed, *change.changed]
    changed = [*(f"models.{name}" for name in models), *others]
    if changed:
        logger.warning("Deploy again to change %s: the replicas have the old settings.", ", ".join(changed))
