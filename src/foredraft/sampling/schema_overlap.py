"""Whether a value can match two JSON schemas at once, judged by types, constants and properties."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import combinations
from typing import Any

MANY = 100
_KINDS = {type(None): "null", bool: "boolean", int: "number", float: "number", str: "string", list: "array"}
_ALL = frozenset({"null", "boolean", "number", "string", "array", "object"})


def are_disjoint(schemas: list[Any], resolved: Callable[[Any], Any]) -> bool:
    """Whether no value matches two of them. `resolved` returns the target of a `$ref`. For many schemas only
    constants are compared, because the other comparisons take quadratic time.
    """
    seen = [resolved(schema) for schema in schemas]
    constants = [_constants(schema) if isinstance(schema, Mapping) else None for schema in seen]
    known = [values for values in constants if values is not None]
    if len(known) == len(seen):
        return len(set().union(*known)) == sum(map(len, known))
    if len(seen) > MANY:
        return False
    return all(_disjoint(one, other, resolved) for one, other in combinations(seen, 2))


def _disjoint(one: Any, other: Any, resolved: Callable[[Any], Any]) -> bool:
    if not isinstance(one, Mapping) or not isinstance(other, Mapping):
        return one is False or other is False
    if not _types(one) & _types(other):
        return True
    values, others = _constants(one), _constants(other)
    if values is not None and others is not None:
        return not values & others
    mine, theirs = _properties(one), _properties(other)
    required = {*_names(one.get("required")), *_names(other.get("required"))}
    return any(
        _disjoint(resolved(mine[name]), resolved(theirs[name]), resolved)
        for name in mine.keys() & theirs.keys() & required
        if "$ref" not in mine[name] or "$ref" not in theirs[name]  # prevents cycles
    )


def _properties(schema: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    given = schema.get("properties")
    items = given.items() if isinstance(given, Mapping) else ()
    return {name: part for name, part in items if isinstance(part, Mapping)}


def _names(given: object) -> list[str]:
    return [name for name in given if isinstance(name, str)] if isinstance(given, list) else []


def _types(schema: Mapping[str, Any]) -> frozenset[str]:
    given, constants = schema.get("type"), _given_constants(schema)
    if isinstance(given, str):
        given = [given]
    if isinstance(given, list):
        return frozenset("number" if name == "integer" else str(name) for name in given)
    return _ALL if constants is None else frozenset(map(_type_of, constants))


def _type_of(value: object) -> str:
    return _KINDS.get(type(value), "object")


def _constants(schema: Mapping[str, Any]) -> set[tuple[str, str]] | None:
    values = _given_constants(schema)
    return None if values is None else {(_type_of(value), _text(value)) for value in values}


def _text(value: object) -> str:
    """The same text for equal values: in JSON 1 and 1.0 are equal."""
    return repr(float(value)) if type(value) in (int, float) and abs(value) < 2**53 else repr(value)  # type: ignore[arg-type]


def _given_constants(schema: Mapping[str, Any]) -> list[Any] | None:
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    return values if isinstance(values, list) else None
