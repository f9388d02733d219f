"""Edits of the settings file that keep everything else, comments included.

The file is read, changed, checked as the server would read it, and written atomically: in one function,
`edit_file`, which keeps other processes' edits out meanwhile. Who has read the file before says which version
that was, and a change made elsewhere is not lost.
"""

from __future__ import annotations

import errno
import hashlib
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import MISSING, asdict, dataclass, fields
from pathlib import Path
from typing import Any, TypeAlias

from foredraft.errors import ConfigError, ModelNotFoundError, SettingsConflictError, quoted
from foredraft.files import locked, write_atomically
from foredraft.server.image_settings import ImageSettings
from foredraft.server.settings import KeySettings, ModelSettings, SamplingDefaults, ServerSettings
from foredraft.server.settings_file import (
    parse_settings,
    parse_toml,
    read_content,
    read_text,
    settings_of,
    text_of,
)
from foredraft.server.toml_edit import UneditableError, with_values

ADMIN = "admin_key_hash"
SAMPLING, ADAPTERS = "sampling", "adapters"
SECRET = 0o600
"""The mode of a file with hashes of keys, and of a new one."""

Edit: TypeAlias = Callable[[dict[str, Any]], None]
"""Changes the file's values in place. May raise ConfigError."""


@dataclass(frozen=True, slots=True)
class Condition:
    """When an edit is saved: the file has `version` (None: whichever), and `check` raises no ConfigError for
    the settings that it will have. `dry`: it is never written, only tried.
    """

    version: str | None = None
    check: Callable[[ServerSettings], object] = lambda _settings: None
    dry: bool = False


ALWAYS = Condition()


# --- keys ----------------------------------------------------------------------------------------------


def add_key(
    path: Path,
    key: KeySettings,
    *,
    admin_key_hash: str | None = None,
    beside: Sequence[KeySettings] = (),
    when: Condition = ALWAYS,
) -> None:
    """Append a key, after those of `beside` and with the hash of an admin key if one is given; the file is
    created if needed. Raises ConfigError, also for a name that is in use.
    """

    def add(data: dict[str, Any]) -> None:
        if admin_key_hash is not None:
            data[ADMIN] = admin_key_hash
        keys = data.setdefault("keys", [])
        keys += [_not_default(asdict(other), KeySettings) for other in beside]
        if key.name in [entry.get("name") for entry in keys]:
            raise ConfigError(
                f"{path} already has a key named {quoted(key.name)}.",
                hint=f"Choose another name, or remove it first: foredraft keys remove {key.name}",
                setting="name",
            )
        keys.append(_not_default(asdict(key), KeySettings))

    edit_file(path, add, when=when, mode=SECRET)


def remove_key(path: Path, name: str, *, when: Condition = ALWAYS) -> int:
    """Remove a key, with the comments inside its table; returns the number of remaining keys.

    Raises ConfigError if there is no key of that name.
    """
    remaining = 0

    def remove(data: dict[str, Any]) -> None:
        nonlocal remaining
        del data["keys"][_index_of(path, data, name)]
        remaining = len(data["keys"])
        if not remaining:
            del data["keys"]

    edit_file(path, remove, when=when, mode=SECRET, must_exist=True)
    return remaining


def change_key(path: Path, name: str, values: Mapping[str, Any], *, when: Condition = ALWAYS) -> None:
    """Change some values of a key; None takes the default. Raises ConfigError."""

    def change(data: dict[str, Any]) -> None:
        _update(data["keys"][_index_of(path, data, name)], values, KeySettings)

    edit_file(path, change, when=when, mode=SECRET, must_exist=True)


def set_admin_key(path: Path, key_hash: str | None, *, when: Condition = ALWAYS) -> None:
    """Set, replace or (None) remove the hash of the admin key. Raises ConfigError."""

    def change(data: dict[str, Any]) -> None:
        if key_hash is not None:
            data[ADMIN] = key_hash
        elif data.pop(ADMIN, None) is None:
            raise ConfigError(f"{path} has no admin key.", hint="'foredraft keys list' shows the keys.")

    edit_file(path, change, when=when, mode=SECRET, must_exist=key_hash is None)


def _index_of(path: Path, data: Mapping[str, Any], name: str) -> int:
    """A key's place. Raises ConfigError."""
    names = [entry.get("name") for entry in data.get("keys", [])]
    if name not in names:
        known = ", ".join(map(repr, names)) or "there is none"
        raise ConfigError(f"{path} has no key named {quoted(name)}.", hint=f"Its keys: {known}.")
    return names.index(name)


# --- models --------------------------------------------------------------------------------------------


def set_model(
    path: Path,
    name: str,
    values: Mapping[str, Any],
    *,
    beside: Mapping[str, ModelSettings] | None = None,
    when: Condition = ALWAYS,
) -> None:
    """Change some values of a model, or add it; None takes the default, and `sampling` holds some values in
    the same way. `beside`: models that the file gets, too, unless it has them, with all their values; may
    name the model itself. Raises ConfigError.
    """

    def change(data: dict[str, Any]) -> None:
        models = data.setdefault("models", {})
        _add_models(models, beside or {})
        _update(models.setdefault(name, {}), values, ModelSettings)

    edit_file(path, change, when=when)


def remove_model(path: Path, name: str, *, when: Condition = ALWAYS) -> None:
    """Remove a model, also as the default one. Raises ModelNotFoundError, ConfigError."""

    def remove(data: dict[str, Any]) -> None:
        model = data.get("models", {}).pop(name, None)
        if model is None:
            raise ModelNotFoundError(f"{path} has no model named {quoted(name)}.")
        if not data["models"]:
            del data["models"]
        if data.get("default_model") in (name, *model.get("aliases", ())):
            del data["default_model"]

    edit_file(path, remove, when=when, must_exist=True)


def set_default_model(
    path: Path,
    name: str | None,
    *,
    beside: Mapping[str, ModelSettings] | None = None,
    when: Condition = ALWAYS,
) -> None:
    """Set the model for requests without one; None is the first. `beside` as for `set_model`. Raises
    ConfigError.
    """

    def change(data: dict[str, Any]) -> None:
        if beside:
            _add_models(data.setdefault("models", {}), beside)
        data.pop("default_model", None) if name is None else data.update(default_model=name)

    edit_file(path, change, when=when)


def _add_models(models: dict[str, Any], beside: Mapping[str, ModelSettings]) -> None:
    for name, settings in beside.items():
        if name not in models:
            _update(models.setdefault(name, {}), asdict(settings), ModelSettings)


def _update(table: dict[str, Any], values: Mapping[str, Any], kind: type[Any]) -> None:
    """Change values of a table; those that are None or the default are left out."""
    for name, value in values.items():
        if name == SAMPLING and isinstance(value, Mapping) and kind is ModelSettings:
            sampling = table.setdefault(name, {})
            _update(sampling, value, SamplingDefaults)
            if not sampling:
                del table[name]
        elif name == ADAPTERS and isinstance(value, tuple):  # as in the settings, not as in the file
            if value:
                table[name] = {it["name"]: {"path": it["path"], "scale": it["scale"]} for it in value}
        elif value is None or not _not_default({name: value}, kind):
            table.pop(name, None)
        else:
            table[name] = list(value) if isinstance(value, tuple) else value


def _not_default(values: Mapping[str, Any], kind: type[Any]) -> dict[str, Any]:
    """The values that differ from the defaults of their settings."""
    defaults = {field.name: field.default for field in fields(kind) if field.default is not MISSING}

    def is_default(name: str, value: object) -> bool:
        default = defaults.get(name, MISSING)
        value = tuple(value) if isinstance(value, list) else value
        return value == default and isinstance(value, bool) == isinstance(default, bool)

    return {name: value for name, value in values.items() if not is_default(name, value)}


# --- images --------------------------------------------------------------------------------------------


def set_images(path: Path, values: Mapping[str, Any], *, when: Condition = ALWAYS) -> None:
    """Change some values of [images]; None takes the default. Raises ConfigError."""

    def change(data: dict[str, Any]) -> None:
        table = data.setdefault("images", {})
        _update(table, values, ImageSettings)
        if not table:
            del data["images"]

    edit_file(path, change, when=when)


# --- the file ------------------------------------------------------------------------------------------


def read_file(path: Path) -> tuple[str, str]:
    """The file's text and its version; both are empty if there is no file. Raises ConfigError."""
    content = read_content(path)
    if content is None:
        return "", ""
    return text_of(content, path), hashlib.sha256(content).hexdigest()[:32]


def edit_file(
    path: Path,
    edit: Edit,
    *,
    when: Condition = ALWAYS,
    mode: int | None = None,
    must_exist: bool = False,
) -> None:
    """Change values of the settings file. `mode`: of the file from now on; None keeps it.

    Raises SettingsConflictError if the file has another version by now, ConfigError for values that are not
    valid, and for a file that cannot be edited or written. Then nothing has changed.
    """
    read_text(path) if must_exist else read_file(path)  # a fault is that of reading, not of the lock
    with _alone(path) as real:
        text, found = read_file(path)
        if when.version is not None and when.version != found:
            raise SettingsConflictError(
                f"{path} has changed since it was read. Nothing was saved.",
                hint="Load the settings again, and repeat the change.",
            )
        parse_settings(text, path)
        wanted = parse_toml(text, path)
        edit(wanted)
        when.check(settings_of(wanted, path))
        try:
            changed = with_values(text, wanted)
        except UneditableError:
            raise ConfigError(
                f"{path} has a form that cannot be edited automatically. Nothing was changed.",
                hint="Edit it by hand.",
            ) from None
        if changed != text and not when.dry:
            _write(path, real, changed, mode)


@contextmanager
def _alone(path: Path) -> Iterator[Path]:
    """The file itself, if the path is a link to it, locked against other edits. Raises ConfigError."""
    with ExitStack() as held:
        try:
            real = path.resolve()
            held.enter_context(locked(real.with_name(f".{real.name}.lock")))
        except (OSError, RuntimeError, ValueError) as error:  # links in a circle; a NUL character
            raise _unwritable(path, error) from error
        yield real


def _write(path: Path, real: Path, text: str, mode: int | None) -> None:
    """Raises ConfigError."""
    try:
        before = stat.S_IMODE(real.stat().st_mode) if real.exists() else SECRET
        if not before & 0o222:
            raise PermissionError(errno.EROFS, "it is read-only")
        write_atomically(real, text.encode(), mode=before if mode is None else mode)
    except OSError as error:
        raise _unwritable(path, error) from error


def _unwritable(path: Path, error: Exception) -> ConfigError:
    mounted = isinstance(error, OSError) and error.errno == errno.EBUSY
    return ConfigError(
        f"{path} cannot be written: {getattr(error, 'strerror', None) or error}.",
        hint="A file that is mounted alone, as into a container, cannot be replaced: mount its folder."
        if mounted
        else None,
    )
