"""Edits of the settings file that keep everything else, comments included.

The file is edited as text, because the standard library can read TOML but not write it. The result is then
parsed: unless exactly the intended values differ, nothing is written.
"""

from __future__ import annotations

import json
import re
from copy import deepcopy
from pathlib import Path
from typing import Any

from foredraft.errors import ConfigError, quoted
from foredraft.files import write_atomically
from foredraft.server.settings import KeySettings
from foredraft.server.settings_file import parse_settings, parse_toml, read_text

ADMIN = "admin_key_hash"
_FIELDS = ("name", "hash", "scope", "requests_per_minute", "max_concurrent", "max_priority")

_HEADER = re.compile(r"[ \t]*\[")
_KEYS_HEADER = re.compile(r"""[ \t]*\[\[[ \t]*(?:keys|"keys"|'keys')[ \t]*\]\]""")
_ADMIN_LINE = re.compile(rf"""[ \t]*(?:{ADMIN}|"{ADMIN}"|'{ADMIN}')[ \t]*=""")


def add_key(path: Path, key: KeySettings) -> None:
    """Append a key; the file is created if needed. Raises ConfigError, also for a name that is in use."""
    text, data = _current(path)
    names = [entry.get("name") for entry in _entries(data)]
    if key.name in names:
        raise ConfigError(
            f"{path} already has a key named {quoted(key.name)}.",
            hint=f"Choose another name, or remove it first: foredraft keys remove {key.name}",
        )
    plain = KeySettings(name=key.name, hash=key.hash)
    values = {
        name: getattr(key, name)
        for name in _FIELDS
        if name in ("name", "hash") or getattr(key, name) != getattr(plain, name)
    }
    end = _line_end(text)
    before = text + end * ((bool(text) and not text.endswith("\n")) + bool(text))
    lines = ["[[keys]]", *(f"{name} = {_toml(value)}" for name, value in values.items())]
    wanted = deepcopy(data)
    wanted["keys"] = [*_entries(data), values]
    _write(path, before + "".join(line + end for line in lines), wanted)


def remove_key(path: Path, name: str) -> int:
    """Remove a key, with the comments inside its table; returns the number of remaining keys.

    Raises ConfigError if there is no key of that name.
    """
    text, data = _current(path, must_exist=True)
    names = [entry.get("name") for entry in _entries(data)]
    if name not in names:
        known = ", ".join(map(repr, names)) or "there is none"
        raise ConfigError(f"{path} has no key named {quoted(name)}.", hint=f"Its keys: {known}.")
    index = names.index(name)
    wanted = deepcopy(data)
    del wanted["keys"][index]
    if not wanted["keys"]:
        del wanted["keys"]
    lines = text.splitlines(keepends=True)
    headers = [at for at, line in enumerate(lines) if _KEYS_HEADER.match(line)]
    if len(headers) == len(names):
        start, end = headers[index], _end_of_table(lines, headers[index])
        del lines[start:end]
        if start == len(lines) and lines and not lines[-1].strip():
            del lines[-1]
    _write(path, "".join(lines), wanted)
    return len(names) - 1


def set_admin_key(path: Path, key_hash: str | None) -> None:
    """Set, replace or (None) remove the hash of the admin key. Raises ConfigError."""
    text, data = _current(path, must_exist=key_hash is None)
    if key_hash is None and ADMIN not in data:
        raise ConfigError(f"{path} has no admin key.", hint="'foredraft keys list' shows the keys.")
    lines = text.splitlines(keepends=True)
    first_table = next((at for at, line in enumerate(lines) if _HEADER.match(line)), len(lines))
    line = [] if key_hash is None else [f"{ADMIN} = {_toml(key_hash)}{_line_end(text)}"]
    old = next((at for at, found in enumerate(lines[:first_table]) if _ADMIN_LINE.match(found)), None)
    wanted = {name: value for name, value in data.items() if name != ADMIN or key_hash is not None}
    if key_hash is not None:
        wanted[ADMIN] = key_hash
    if old is None:
        # At the very top: below a table's header it would belong to that table.
        above_comment = bool(lines) and lines[0].lstrip().startswith(("#", "["))
        lines[0:0] = [*line, _line_end(text)] if above_comment else line
    else:
        lines[old : old + 1] = line
    _write(path, "".join(lines), wanted)


def _current(path: Path, *, must_exist: bool = False) -> tuple[str, dict[str, Any]]:
    """The file's text and values. Raises ConfigError for an invalid file, which is not edited."""
    text = read_text(path) if must_exist or path.exists() else ""
    parse_settings(text, path)
    return text, parse_toml(text, path)


def _entries(data: dict[str, Any]) -> list[dict[str, Any]]:
    entries: list[dict[str, Any]] = data.get("keys", [])
    return entries


def _end_of_table(lines: list[str], start: int) -> int:
    """The line after a table's last value, and after one following blank line."""
    end = next((at for at in range(start + 1, len(lines)) if _HEADER.match(lines[at])), len(lines))
    while end > start + 1 and (not lines[end - 1].strip() or lines[end - 1].lstrip().startswith("#")):
        end -= 1
    return end + 1 if end < len(lines) and not lines[end].strip() else end


def _line_end(text: str) -> str:
    return "\r\n" if "\r\n" in text else "\n"


def _toml(value: str | int) -> str:
    """TOML for a number, or for a string without control characters (checked before)."""
    return json.dumps(value, ensure_ascii=False)


def _write(path: Path, text: str, wanted: dict[str, Any]) -> None:
    try:
        fits = parse_toml(text, path) == wanted
    except ConfigError:
        fits = False
    if not fits:
        raise ConfigError(
            f"{path} has a form that cannot be edited automatically. Nothing was changed.",
            hint="Edit it by hand: each key is its own [[keys]] table (docs/server-settings.md).",
        )
    parse_settings(text, path)
    try:
        # Write to the file itself if the path is a link to it.
        write_atomically(path.resolve(), text.encode())
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror or error}.") from error
