"""Values that a call's form writes bare, as JSON of the type that the function's schema gives them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
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
_WORDS: Final = {"True": "true", "False": "false", "None": "null"}
"""As Python spells them: templates print the arguments of earlier calls so, and models do as they read."""

_REFERENCES: Final = 32
STRING: Final = frozenset({"string"})


def types_of(schema: object, root: Mapping[str, Any], depth: int = _REFERENCES) -> frozenset[str] | None:
    """The JSON types that a schema allows; None where it does not say. `root` is where references lead."""
    if not isinstance(schema, Mapping) or not depth:
        return None
    if "$ref" in schema:
        return types_of(referred(schema["$ref"], root), root, depth - 1)
    for key in ("anyOf", "oneOf"):
        if isinstance(schema.get(key), Sequence):
            found = [types_of(part, root, depth - 1) for part in schema[key]]
            return None if None in found else frozenset().union(*filter(None, found))
    if isinstance(schema.get("enum"), Sequence):
        return frozenset(_NAMES.get(type(value), "null") for value in schema["enum"])
    if "const" in schema:
        return frozenset({_NAMES.get(type(schema["const"]), "null")})
    kind = schema.get("type")
    if isinstance(kind, str):
        return frozenset({kind})
    return frozenset(kind) if isinstance(kind, list) and kind else None


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
