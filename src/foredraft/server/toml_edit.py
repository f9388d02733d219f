"""Changes a TOML text such that it has other values, and keeps the rest: comments, order and line ends.

The values are changed as plain ones; what differs is then applied to the text. Comments in a table belong to
it, but those below its last value to what follows.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, MutableMapping
from typing import TYPE_CHECKING, Any, TypeAlias

from foredraft.registry import missing_dependency

if TYPE_CHECKING:
    from tomlkit.items import AoT, Array, Table

Values: TypeAlias = Mapping[str, Any]


class UneditableError(Exception):
    """The text has a form in which these values cannot be changed, or TOML has no such value."""


def with_values(text: str, wanted: Values) -> str:
    """The TOML text with these values in place of its own.

    Raises UneditableError, MissingDependencyError without tomlkit, and what parsing an invalid text raises.
    """
    try:
        import tomlkit
    except ImportError as error:
        raise missing_dependency("tomlkit", "Changing the settings file", extra="server") from error
    crlf = "\r\n" in text and text.count("\r\n") == text.count("\n")
    lines = text.replace("\r\n", "\n") if crlf else text
    had = tomllib.loads(lines)
    try:
        document = tomlkit.parse(lines)
        top = {name: value for name, value in wanted.items() if name not in had and not _is_table(value)}
        _apply(document, had, {name: value for name, value in wanted.items() if name not in top})
        changed = _trimmed(tomlkit.dumps(document), lines)
        if top:  # above everything: below a table's header it would belong to that table
            gap = "\n" if changed.lstrip(" \t").startswith(("#", "[")) else ""
            changed = tomlkit.dumps(top) + gap + changed
        right = _same(tomllib.loads(changed), wanted)
    except Exception as error:  # whatever the library does with a rare form: the text stays as it is
        raise UneditableError from error
    if not right:
        raise UneditableError
    return changed.replace("\n", "\r\n") if crlf else changed


def _is_table(value: object) -> bool:
    """Whether TOML has a value below a header of its own: a table, or a list of tables."""
    return isinstance(value, dict) or (
        isinstance(value, list) and bool(value) and all(isinstance(one, dict) for one in value)
    )


def _same(one: object, other: object) -> bool:
    """Equality that tells true from 1."""
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(_same(one[name], other[name]) for name in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_same, one, other))
    return type(one) is type(other) and one == other


def _trimmed(changed: str, before: str) -> str:
    """Without an empty line at either end that was not there before."""
    if changed.startswith("\n") and not before.startswith("\n"):
        changed = changed[1:]
    if changed.endswith("\n\n") and not before.endswith("\n\n"):
        changed = changed[:-1]
    return changed


def _apply(table: MutableMapping[str, Any], had: Values, wanted: Values) -> None:
    """Change what differs in a table of the document."""
    from tomlkit.items import AoT, Array

    for name in [name for name in had if name not in wanted]:
        _remove(table, name)
    for name, value in wanted.items():
        if name in had and _same(had[name], value):
            continue
        if name in had and isinstance(had[name], dict) and isinstance(value, dict):
            _apply(table[name], had[name], value)
        elif name in had and isinstance(table[name], AoT) and _is_table(value):
            _apply_list(table[name], had[name], value)
        elif name in had and isinstance(table[name], Array) and isinstance(value, list):
            _apply_array(table[name], had[name], value)
        elif name in had or not _is_table(value):
            table[name] = value
        else:
            _add(table, name, value)


def _add(table: Any, name: str, value: Any) -> None:
    """Add a table, or a list of tables, after the others; of a document at its end."""
    from tomlkit.items import Table

    table = _pieces(table)[-1]
    below = _take_rest(table) if isinstance(table, Table) else ""
    table[name] = value
    if below:
        _give_rest(table[name], below)


def _apply_list(tables: AoT, had: list[Values], wanted: list[Values]) -> None:
    """Change a list of tables: one is gone, some are new at the end, or their values differ."""
    if len(wanted) < len(had):
        gone = next((at for at, one in enumerate(wanted) if not _same(had[at], one)), len(wanted))
        below = _comments(_take_rest(tables[gone]))
        del tables[gone]
        if gone:
            _give_rest(tables[gone - 1], below)
        else:
            tables[0].trivia.indent = below + tables[0].trivia.indent
        return
    for at, one in enumerate(wanted[: len(had)]):
        if not _same(had[at], one):
            _apply(tables[at], had[at], one)
    for one in wanted[len(had) :]:
        below = _take_rest(tables)
        tables.append(_table(one))
        if below:
            _give_rest(tables[-1], below)


def _apply_array(array: Array, had: list[Any], wanted: list[Any]) -> None:
    """Change what differs between the values at the beginning and those at the end that stay, each with the
    comments beside it.
    """
    least = min(len(had), len(wanted))
    first = next((at for at in range(least) if not _same(had[at], wanted[at])), least)
    rest = least - first
    last = next((at for at in range(rest) if not _same(had[-1 - at], wanted[-1 - at])), rest)
    old, new = had[first : len(had) - last], wanted[first : len(wanted) - last]
    for at in reversed(range(len(new), len(old))):
        del array[first + at]
    for at, value in enumerate(new):
        if at >= len(old):
            array.insert(first + at, value)
        elif isinstance(old[at], dict) and isinstance(value, dict):
            _apply(array[first + at], old[at], value)
        else:
            array[first + at] = value


def _table(values: Values) -> Table:
    from tomlkit import table

    made = table()
    made.update(values)
    return made


def _remove(table: Any, name: str) -> None:
    """Remove a value, or a table with the comments in it."""
    from tomlkit import TOMLDocument
    from tomlkit.items import AoT, Table, Whitespace

    table = next((piece for piece in _pieces(table) if name in piece), table)
    old = table[name]
    if not (isinstance(old, Table | AoT) and isinstance(table, Table | TOMLDocument)):
        del table[name]
        return
    body = (table if isinstance(table, TOMLDocument) else table.value).body
    at, below = next(at for at, (_, item) in enumerate(body) if item is old), _comments(_take_rest(old))
    table.remove(name)
    body[at] = (None, Whitespace(below))


def _pieces(table: Any) -> list[Any]:
    """The parts of a table that has other tables between its own; itself if it is in one piece."""
    from tomlkit.container import OutOfOrderTableProxy

    return table._tables if isinstance(table, OutOfOrderTableProxy) else [table]


def _take_rest(item: Table | AoT) -> str:
    """Cut off what stands below the last value: empty lines and comments."""
    from tomlkit.items import Comment, Null, Whitespace

    body, rest = _last(item).value.body, list[str]()
    while body and isinstance(body[-1][1], Comment | Null | Whitespace):
        rest.insert(0, body.pop()[1].as_string())
    return "".join(rest)


def _comments(rest: str) -> str:
    """What is left of it when its table is removed: empty lines alone go as well."""
    return rest.lstrip("\n") if rest.strip() else ""


def _give_rest(item: Table | AoT, text: str) -> None:
    from tomlkit.items import Whitespace

    _last(item).value.body.append((None, Whitespace(text)))


def _last(item: Table | AoT) -> Table:
    """The table whose values stand last."""
    from tomlkit.items import AoT, Table

    while True:
        below = item[-1] if isinstance(item, AoT) else item.value.body[-1][1] if item.value.body else None
        if not isinstance(below, AoT | Table):
            assert isinstance(item, Table)
            return item
        item = below
