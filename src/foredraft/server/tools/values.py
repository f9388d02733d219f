"""Values that a call's form writes bare, as JSON of the type that the function's schema gives them."""

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
"""As Python spells them: templates print the arguments of earlier calls so, and models do as they read."""

_STEPS: Final = 256
"""References and alternatives that are followed within one schema."""

STRING: Final = frozenset({"string"})


def types_of(schema: object, root: Mapping[str, Any]) -> frozenset[str] | None:
    """The JSON types that a schema allows; None where it does not say. `root` is where references lead."""
    parts = alternatives(schema, root)
    found = [_types(part) for part in parts or ()]
    return None if not parts or None in found else frozenset().union(*filter(None, found))


def alternatives(schema: object, root: Mapping[str, Any]) -> list[Mapping[str, Any]] | None:
    """The schemas of which a value has to follow one, with no references or alternatives in their own place.
    None: there are too many. References may lead to where they came from, so each is followed once.
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
    """What stands for a schema; None: it stands for itself."""
    if not isinstance(schema, Mapping):
        return None
    if "$ref" in schema:
        return [referred(schema["$ref"], root)]
    for key in ("anyOf", "oneOf"):
        if isinstance(schema.get(key), list | tuple):
            return list(schema[key])
    return None


def _types(schema: Mapping[str, Any]) -> set[str] | None:
    """The types of a schema that stands for itself."""
    if isinstance(schema.get("enum"), list | tuple):
        return {_NAMES.get(type(value), "null") for value in schema["enum"]}
    if "const" in schema:
        return {_NAMES.get(type(schema["const"]), "null")}
    kinds = schema.get("type")
    listed = kinds if isinstance(kinds, list | tuple) else [kinds]
    return {kind for kind in listed if isinstance(kind, str)} or None


def referred(reference: object, root: Mapping[str, Any]) -> object:
    """What a reference into the schema `root` leads to; None: nowhere."""
    if not isinstance(reference, str) or not reference.startswith("#"):
        return None
    place: object = root
    for part in filter(None, reference[1:].split("/")):
        key = part.replace("~1", "/").replace("~0", "~")
        place = place.get(key) if isinstance(place, Mapping) else None
    return place


def json_value(text: str, types: frozenset[str] | None) -> str:
    """A bare value as JSON text: of one of `types` if it is written like one, else a string."""
    bare = text.strip()
    for written in (bare, _WORDS.get(bare, bare) if types else bare):
        kind = _kind(written)
        if kind and (types is None or kind in types or (kind == "integer" and "number" in types)):
            return written
    return json.dumps(text, ensure_ascii=False)


def _kind(text: str) -> str | None:
    """The JSON type of a text that is JSON, and no string."""
    try:
        value = json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return None
    return None if isinstance(value, str) else _NAMES[type(value)]


def _refuse(constant: str) -> None:
    raise ValueError(constant)
