"""Unquoted values of calls, converted to JSON of the type in the function's schema."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

_NAMES: Final[Mapping[type, str]] = {
    bool: "boolean",
    int: "integer",
    float: "number",
    str: "string",
    list: "array",
    dict: "object",
    type(None): "null",
}
TYPES: Final = tuple(_NAMES.values())
_WORDS: Final = {"True": "true", "False": "false", "None": "null"}
"""Python's spellings: templates print earlier calls' arguments like this, and models imitate it."""

_STEPS: Final = 256
"""Maximum references and alternatives that are followed within one schema."""

STRING: Final = frozenset({"string"})


def types_of(schema: object, root: Mapping[str, Any]) -> frozenset[str] | None:
    """The JSON types that a schema allows; None if it does not restrict them. `root` resolves references."""
    parts = alternatives(schema, root)
    found = [_types(part) for part in parts or ()]
    return None if not parts or None in found else frozenset().union(*filter(None, found))


def alternatives(schema: object, root: Mapping[str, Any]) -> list[Mapping[str, Any]] | None:
    """The alternative schemas for a value, without references or alternatives at their top level. None: too
    many. References may be circular, so each is followed once.
    """
    found: list[Mapping[str, Any]] = []
    seen: set[int] = set()
    left = [schema]
    for _ in range(_STEPS):
        given = left.pop()
        if id(given) not in seen:
            seen.add(id(given))
            parts = _parts(given, root)
            if parts is None:
                found.append(given if isinstance(given, Mapping) else {})
            else:
                left += reversed(parts)
        if not left:
            return found
    return None


def _parts(schema: object, root: Mapping[str, Any]) -> list[Any] | None:
    """The schemas that a reference or alternatives stand for; None for any other schema."""
    if not isinstance(schema, Mapping):
        return None
    if "$ref" in schema:
        return [referred(schema["$ref"], root)]
    for key in ("anyOf", "oneOf"):
        if isinstance(schema.get(key), list | tuple):
            return list(schema[key])
    return None


def _types(schema: Mapping[str, Any]) -> set[str] | None:
    """The types of a schema without alternatives."""
    if isinstance(schema.get("enum"), list | tuple):
        return {_NAMES.get(type(value), "null") for value in schema["enum"]}
    if "const" in schema:
        return {_NAMES.get(type(schema["const"]), "null")}
    kinds = schema.get("type")
    listed = kinds if isinstance(kinds, list | tuple) else [kinds]
    return {kind for kind in listed if isinstance(kind, str)} or None


def referred(reference: object, root: Mapping[str, Any]) -> object:
    """The target of a reference into the schema `root`; None if there is none."""
    if not isinstance(reference, str) or not reference.startswith("#"):
        return None
    place: object = root
    for part in filter(None, reference[1:].split("/")):
        key = part.replace("~1", "/").replace("~0", "~")
        place = place.get(key) if isinstance(place, Mapping) else None
    return place


def json_value(text: str, types: frozenset[str] | None) -> str:
    """An unquoted value as JSON text: of one of `types` if it has that form, otherwise a string."""
    bare = text.strip()
    for written in (bare, _WORDS.get(bare, bare) if types else bare):
        kind = _kind(written)
        if kind and (types is None or kind in types or (kind == "integer" and "number" in types)):
            return written
    return json.dumps(text, ensure_ascii=False)


def _kind(text: str) -> str | None:
    """The JSON type of a text that is JSON but not a string."""
    try:
        value = json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return None
    return None if isinstance(value, str) else _NAMES[type(value)]


def _refuse(constant: str) -> None:
    raise ValueError(constant)
