"""Locations of schemas within a JSON schema, the targets of its references, and its depth."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import unquote

from foredraft.errors import RequestError

MAX_LEVELS = 128
"""Maximum levels of nested schemas, targets of `$ref` included. llguidance recurses through them, which on
the stack of its trial works for about 200.
"""

Schema = dict[str, Any]

# fmt: off
ONE = frozenset([
    "items", "additionalItems", "additionalProperties", "contains", "propertyNames",
    "unevaluatedItems", "unevaluatedProperties", "not", "if", "then", "else",
])
MANY = frozenset(["allOf", "anyOf", "oneOf", "prefixItems", "items"])
BY_NAME = frozenset(["properties", "patternProperties", "$defs", "definitions", "dependentSchemas"])
# fmt: on


def steps(pointer: str) -> list[str]:
    """The keys and indices in a reference such as `#/$defs/a`."""
    return [step.replace("~1", "/").replace("~0", "~") for step in unquote(pointer).split("/")[1:]]


def target(root: Mapping[str, Any], pointer: str) -> Any:
    """The target of a reference within a document; None if there is none."""
    place: Any = root
    for step in steps(pointer):
        if isinstance(place, list):
            place = place[int(step)] if step.isdecimal() and int(step) < len(place) else None
        else:
            place = place.get(step) if isinstance(place, Mapping) else None
    return place


def check_levels(root: Schema) -> None:
    """Raises RequestError for schemas that are nested too deeply. Each reference is followed once, as in
    llguidance.
    """
    seen = {"#"}

    def visit(schema: object, level: int) -> None:
        if level > MAX_LEVELS:
            raise too_deep()
        if not isinstance(schema, Mapping):
            return
        pointer = schema.get("$ref")
        if isinstance(pointer, str) and pointer not in seen:
            seen.add(pointer)
            visit(target(root, pointer), level + 1)
        for part in _parts(schema):
            visit(part, level + 1)

    visit(root, 0)


def _parts(schema: Mapping[str, Any]) -> Iterator[Any]:
    for name, value in schema.items():
        if name in ("$defs", "definitions"):
            continue
        if name in BY_NAME and isinstance(value, Mapping):
            yield from value.values()
        elif name in MANY and isinstance(value, list):
            yield from value
        elif name in ONE:
            yield value


def too_deep() -> RequestError:
    """The error for a schema beyond `MAX_LEVELS`."""
    return RequestError(
        f"The JSON schema cannot be used: its schemas are nested more than {MAX_LEVELS} levels deep, "
        "references included.",
        hint="Use a flatter schema.",
    )
