"""The settings file: reading it as `ServerSettings`, detecting changes, and reloading it while serving.

Keys are the fields of the settings' dataclasses (docs/server-settings.md). An unknown key is an error: a
misspelt limit must not count as no limit.
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields, replace
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from foredraft.errors import ConfigError, SettingsConflictError, quoted
from foredraft.server.image_settings import ImageSettings
from foredraft.server.settings import (
    AdapterSettings,
    KeySettings,
    Limits,
    ModelSettings,
    SamplingDefaults,
    ServerSettings,
)

FILE_NAME = "foredraft.toml"
"""The default settings file, in the current folder."""

TOP = "the top level"

NEEDS_RESTART = (
    "host", "port", "llama_library", "cache_dir", "remember", "prefix_cache_gb", "cors_origins",
    "log_format", "metrics", "idle_training",
)  # fmt: skip
"""Settings that are only read when the server starts."""

HINTS = {
    ModelSettings: "path is a file, or the name of a pulled model.",
    AdapterSettings: "path is a GGUF file, or a folder in PEFT's format.",
    KeySettings: "'foredraft keys new' writes the whole table.",
}
"""Hints for a missing required key, by table."""

OTHER_NAMES = {
    "ctx": ("context_length",),
    "ctx_size": ("context_length",),
    "lora": ("adapters",),
    "rope": ("rope_scaling",),
}
"""Keys by which a setting is called elsewhere, such as at the command line."""

Table = TypeVar(
    "Table",
    Limits,
    ImageSettings,
    ModelSettings,
    AdapterSettings,
    SamplingDefaults,
    KeySettings,
    ServerSettings,
)


# --- reading -------------------------------------------------------------------------------------------


def read_settings(path: Path) -> ServerSettings:
    """Read the settings from a file. Raises ConfigError naming the file, the table, the key and what is
    valid.
    """
    return parse_settings(read_text(path), path)


def read_text(path: Path) -> str:
    """The file's text, with its line ends unchanged. Raises ConfigError."""
    content = read_content(path)
    if content is None:
        raise ConfigError(
            f"There is no settings file {path}.", hint="'foredraft keys new NAME' starts one with a key."
        )
    return text_of(content, path)


def read_content(path: Path) -> bytes | None:
    """The file's bytes; None if there is no file. Raises ConfigError."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:  # ValueError: a NUL character in the path
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(f"The settings file {path} cannot be read: {reason}.") from error


def text_of(content: bytes, path: Path) -> str:
    """The text of a file with this content. Raises ConfigError."""
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is not UTF-8 text.", hint="A settings file is TOML in UTF-8.") from None


def parse_toml(text: str, path: Path) -> dict[str, Any]:
    """Parse TOML into plain values. Raises ConfigError with line and column."""
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # ValueError also for a number with thousands of digits
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else error
        raise ConfigError(f"{path} is not valid TOML: {reason}.", hint="Put strings in quotes.") from None


def parse_settings(text: str, path: Path) -> ServerSettings:
    """The settings in a file's text. Relative paths are relative to the file's folder. Raises ConfigError."""
    return settings_of(parse_toml(text, path), path)


def settings_of(data: Mapping[str, Any], path: Path) -> ServerSettings:
    """The settings that a file with these values would have. Raises ConfigError."""
    return _Reader(path).settings(data)


class _Reader:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._folder = path.absolute().parent

    def settings(self, data: Mapping[str, Any]) -> ServerSettings:
        values = self._known(ServerSettings, data, TOP)
        models = self._table(values.get("models", {}), "[models]")
        values["models"] = {name: self._model(name, value) for name, value in models.items()}
        values["limits"] = self._made(Limits, values.get("limits", {}), "[limits]")
        values["images"] = self._images(values.get("images", {}))
        values["keys"] = tuple(
            self._made(KeySettings, key, f"[[keys]] number {number}")
            for number, key in enumerate(self._tables(values.get("keys", []), "[[keys]]"), 1)
        )
        for name in {"cache_dir", "llama_library"} & set(values):
            values[name] = self._path_of(values[name])
        return self._made(ServerSettings, values, TOP)

    def _model(self, name: str, data: object) -> ModelSettings:
        where = f"[models.{name}]"
        values = self._known(ModelSettings, self._table(data, where), where)
        sampling = f"[models.{name}.sampling]"
        values["sampling"] = self._made(SamplingDefaults, values.get("sampling", {}), sampling)
        for key in {"path", "draft_model", "mmproj"} & set(values):
            values[key] = self._anchored(values[key])
        adapters = self._table(values.get("adapters", {}), f"[models.{name}.adapters]")
        values["adapters"] = tuple(self._adapter(name, its, value) for its, value in adapters.items())
        return self._made(ModelSettings, values, where)

    def _images(self, data: object) -> ImageSettings:
        values = self._known(ImageSettings, self._table(data, "[images]"), "[images]")
        if isinstance(values.get("folders"), tuple):
            values["folders"] = tuple(map(self._path_of, values["folders"]))
        return self._made(ImageSettings, values, "[images]")

    def _adapter(self, model: str, name: str, data: object) -> AdapterSettings:
        where = f"[models.{model}.adapters.{name}]"
        values = self._known(AdapterSettings, {"name": name, **self._table(data, where)}, where)
        if isinstance(path := values.get("path"), str) and path:
            values["path"] = str(self._path_of(path))
        return self._made(AdapterSettings, values, where)

    def _made(self, kind: type[Table], data: object, where: str) -> Table:
        values = self._known(kind, self._table(data, where), where)
        missing = [
            field.name
            for field in fields(kind)
            if field.default is MISSING and field.default_factory is MISSING and field.name not in values
        ]
        if missing:
            error = ConfigError(f"{missing[0]} is missing.", hint=HINTS[kind], setting=missing[0])
            raise self._error(where, error)
        try:
            return kind(**values)
        except ConfigError as invalid:
            raise self._error(where, invalid) from None

    def _known(self, kind: type[Any], data: Mapping[str, Any], where: str) -> dict[str, Any]:
        """A table's values, with lists as tuples. Raises ConfigError for an unknown key."""
        valid = [field.name for field in fields(kind)]
        for key in data:
            if key not in valid:
                near = [known for known in OTHER_NAMES.get(key, ()) if known in valid]
                near = near or difflib.get_close_matches(key, valid, n=1)
                guess = f"Did you mean {quoted(near[0])}? " if near else ""
                error = ConfigError(
                    f"there is no key {quoted(key)}.",
                    hint=f"{guess}Valid keys: {', '.join(valid)}.",
                    setting=key,
                )
                raise self._error(where, error)
        return {key: tuple(value) if isinstance(value, list) else value for key, value in data.items()}

    def _table(self, value: object, where: str) -> dict[str, Any]:
        if not isinstance(value, dict):
            error = ConfigError(
                f"{quoted(value)} is not a table.", hint=f"Write {where}, with its keys below."
            )
            raise self._error(where, error)
        return value

    def _tables(self, value: object, where: str) -> tuple[object, ...]:
        if not isinstance(value, tuple | list):
            error = ConfigError(
                f"{quoted(value)} is not a list of tables.", hint=f"Write {where} above the keys of each."
            )
            raise self._error(where, error)
        return tuple(value)

    def _anchored(self, value: Any) -> Any:
        """An existing path relative to the file becomes absolute; any other value may be a model's name."""
        if not isinstance(value, str) or not value or "\0" in value:
            return value
        near = self._folder / value
        try:
            return str(near) if near.is_file() or value.startswith(("./", "../")) else value
        except OSError:  # too long for a path
            return value

    def _path_of(self, value: Any) -> Any:
        """A path relative to the file, or a value that the settings' validation refuses."""
        if not isinstance(value, str) or not value:
            return value
        try:
            return self._folder / Path(value).expanduser()
        except RuntimeError:  # no such user
            return Path(value)

    def _error(self, where: str, error: ConfigError) -> ConfigError:
        setting = error.setting
        if where.endswith(".sampling]"):
            setting = f"sampling.{setting}" if setting else "sampling"
        return ConfigError(f"{self._path}, {where}: {error.message}", hint=error.hint, setting=setting)


# --- what changed --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SettingsChange:
    """Differences between two settings, each a tuple of names in the new order.

    `added`, `removed`, `changed`: models. `reload`: those of `changed` that must be loaded again. `live`:
    other settings that take effect at once. `restart`: settings that require a restart.
    """

    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    reload: tuple[str, ...] = ()
    live: tuple[str, ...] = ()
    restart: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return any((self.added, self.removed, self.changed, self.live, self.restart))


def diff(old: ServerSettings, new: ServerSettings) -> SettingsChange:
    """Compare the settings before and after an edit of the file."""
    changed = [name for name, model in new.models.items() if name in old.models and old.models[name] != model]
    names = [field.name for field in fields(ServerSettings) if field.name != "models"]
    others = [name for name in names if getattr(old, name) != getattr(new, name)]
    return SettingsChange(
        added=tuple(name for name in new.models if name not in old.models),
        removed=tuple(name for name in old.models if name not in new.models),
        changed=tuple(changed),
        reload=tuple(name for name in changed if not new.models[name].loads_like(old.models[name])),
        live=tuple(name for name in others if name not in NEEDS_RESTART),
        restart=tuple(name for name in others if name in NEEDS_RESTART),
    )


def until_restart(running: ServerSettings, new: ServerSettings) -> ServerSettings:
    """New settings for a server that runs: what needs a restart stays as it is."""
    return replace(new, **{name: getattr(running, name) for name in NEEDS_RESTART})


# --- reading again -------------------------------------------------------------------------------------

_Stamp: TypeAlias = tuple[int, ...]


class SettingsWatcher:
    """Reads the settings file and detects edits. `current` is the last valid version.

    An edit counts when the file is unchanged between two polls: some editors empty a file before writing it,
    and an empty file is valid. Settings for which `check` raises ConfigError are not valid here. Creating a
    watcher reads the file and raises ConfigError; without `must_exist` a missing file has no settings, until
    there is one.
    """

    def __init__(
        self,
        path: Path,
        *,
        must_exist: bool = True,
        check: Callable[[ServerSettings], object] = lambda _settings: None,
    ) -> None:
        self._path = path
        self._check = check
        # Taken before the file is read, so that an edit in between is detected.
        self._read = self._seen = _stamp(path)
        missing = not must_exist and not self._read
        self.current = ServerSettings() if missing else read_settings(path)

    def poll(self) -> ServerSettings | ConfigError | None:
        """New settings, an invalid edit's error (returned once), or None. Reads one file; never raises."""
        stamp = _stamp(self._path)
        settled, self._seen = stamp == self._seen, stamp
        if not settled or stamp == self._read:
            return None
        return self._taken(stamp)

    def reread(self) -> ServerSettings | ConfigError | None:
        """The same of the file as it is now, without waiting until an edit has settled: for who has just
        written it.
        """
        self._seen = _stamp(self._path)
        return self._taken(self._seen)

    def _taken(self, stamp: _Stamp) -> ServerSettings | ConfigError | None:
        self._read = stamp
        try:
            new = read_settings(self._path)
            self.check_still_closed(new)
            self._check(new)
        except ConfigError as error:
            return error
        if new == self.current:
            return None
        self.current = new
        return new

    def check_not_lost(self, new: ServerSettings) -> None:
        """Raises SettingsConflictError for a file without settings that had some when it was last taken: some
        editors empty a file, or move it away, before they write it.
        """
        if new == ServerSettings() and self.current != new:
            raise SettingsConflictError(
                f"{self._path} is empty or gone: another program may be saving it. Nothing was saved.",
                hint="Try again in some seconds. If the file is gone, put it back or restart the server.",
            )

    def check_still_closed(self, new: ServerSettings) -> None:
        """Raises ConfigError if no key is left: a truncated file must not open the server."""
        if self.current.keys and not new.keys:
            raise ConfigError(
                f"{self._path} no longer has any keys: without keys anyone could use this server.",
                hint="The old keys stay valid. To remove all keys, restart the server.",
            )


def _stamp(path: Path) -> _Stamp:
    """Values that change if a file is written, replaced, or given another mode; empty without a file."""
    try:
        found = path.stat()
    except (OSError, ValueError):
        return ()
    return found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_ino
