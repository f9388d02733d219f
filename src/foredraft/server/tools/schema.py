"""JSON schemas of calls: functions' schemas merged into one, with their references, and grammar rules."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from foredraft.errors import RequestError
from foredraft.sampling.json_schema import prepare
from foredraft.sampling.trial import WHITESPACE
from foredraft.server.tools.choice import Tool

ROOM: Final = 4 << 20
"""Maximum characters of rules for separate values. Each includes everything it refers to."""

_DEFINITIONS: Final = "#/$defs"
_BY_NAME: Final = frozenset(
    {"properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies"}
)
_OF_MEMBERS: Final = frozenset(
    {"type", "properties", "required", "additionalProperties", "$defs", "definitions"}
    | {"$schema", "$id", "id", "$anchor", "x-guidance"}
)
_NOT_SCHEMAS: Final = frozenset({"const", "enum", "default", "example", "examples"})


def call_schema(
    tools: Sequence[Tool],
    *,
    arguments: str,
    name: str = "name",
    extra: Mapping[str, Mapping[str, Any]] | None = None,
) -> dict[str, Any]:
    """The schema of one call of any of `tools`: `extra` members, the name under the key `name`, then the
    arguments under the key `arguments`.

    The name comes first because the parser can only announce a call once it knows the name.
    """
    calls = [
        {
            "type": "object",
            "properties": {
                **(extra or {}),
                name: {"const": tool.name},
                arguments: {"$ref": f"{_DEFINITIONS}/{tool.name}"},
            },
            "required": [*(extra or {}), name, arguments],
            "additionalProperties": False,
        }
        for tool in tools
    ]
    body: dict[str, Any] = calls[0] if len(calls) == 1 else {"anyOf": calls}
    return {**body, "$defs": definitions(tools)}


def embedded(schema: Mapping[str, Any]) -> str:
    """The schema for use in a Lark grammar: with minimal white space, like a schema on its own, unless it
    sets that itself.
    """
    own = schema.get("x-guidance")
    options = {"whitespace_pattern": WHITESPACE, **(own if isinstance(own, Mapping) else {})}
    return json.dumps({**schema, "x-guidance": options})


def arguments_schema(tool: Tool) -> dict[str, Any]:
    """The schema of a function's arguments on its own."""
    return {"$ref": f"{_DEFINITIONS}/{tool.name}", "$defs": definitions([tool])}


def argument_rules(tools: Sequence[Tool]) -> list[str]:
    """Lark rules `arguments_0`, `arguments_1`, … for these functions' arguments as JSON."""
    bodies = (embedded(arguments_schema(tool)) for tool in tools)
    return [f"arguments_{index}: %json {body}" for index, body in enumerate(bodies)]


def argument_schema(tool: Tool, schema: object) -> Any:
    """A part of a function's parameters as a schema on its own, with its references resolved as before."""
    if "$ref" not in json.dumps(schema):
        return schema
    moved = _moved(schema, f"{_DEFINITIONS}/{tool.name}")
    return {**moved, "$defs": definitions([tool])}


def members(must: Sequence[str], may: Sequence[str], comma: str) -> str:
    """Lark for members in this order, separated by commas: all of `must`, and any of `may`."""
    between = json.dumps(comma)
    if must:
        return f"{f' {between} '.join(must)} {_further(may, between)}"
    begun = [f"{member} {_further(may[place + 1 :], between)}" for place, member in enumerate(may)]
    return f"({' | '.join(begun)})?" if begun else ""


def _further(may: Sequence[str], between: str) -> str:
    return " ".join(f"({between} {member})?" for member in may)


def properties_of(tool: Tool) -> Mapping[str, Any] | None:
    """The schemas of a function's arguments by name; None if they are not listed and any are allowed.

    Raises RequestError for a strict function with further restrictions on its arguments as a whole.
    """
    schema = prepared(tool)
    if tool.strict and (odd := sorted(set(schema) - _OF_MEMBERS)):
        raise unfollowable(tool, f"they have {odd[0]!r}")
    properties = schema.get("properties") or {}
    return None if not properties and schema.get("additionalProperties") is not False else properties


def unfollowable(tool: Tool, why: str) -> RequestError:
    """The error for a strict function whose schema cannot be expressed in the dialect's grammar."""
    return RequestError(
        f"The parameters of the function {tool.name!r} cannot be enforced in the form of this model's "
        f"calls: {why}.",
        hint='Set "strict" to false, so that they are not enforced.',
    )


def definitions(tools: Sequence[Tool]) -> dict[str, Any]:
    """Each function's parameters by name, prepared for the grammar, with references resolved as before.
    Raises RequestError for parameters that cannot be enforced.
    """
    return {tool.name: _moved(prepared(tool), f"{_DEFINITIONS}/{tool.name}") for tool in tools}


def prepared(tool: Tool) -> dict[str, Any]:
    """A function's parameters, prepared for a grammar. Raises RequestError if they cannot be enforced."""
    try:
        return prepare(tool.parameters, strict=tool.strict).schema
    except RequestError as error:
        raise RequestError(
            f"The parameters of the function {tool.name!r} cannot be enforced. {error.message}",
            hint=error.hint,
        ) from None


def _moved(schema: object, place: str) -> Any:
    """A schema whose references to its own root ("#…") are redirected to `place`.

    A schema with its own `$id` is a separate document, so its references stay.
    """
    if isinstance(schema, list | tuple):
        return [_moved(part, place) for part in schema]
    if not isinstance(schema, Mapping):
        return schema
    moved: dict[str, Any] = {}
    for key, value in schema.items():
        if key == "$ref" and isinstance(value, str) and (value == "#" or value.startswith("#/")):
            moved[key] = place + value[1:]
        elif key in _NOT_SCHEMAS or key == "$schema":
            moved[key] = value
        elif key in _BY_NAME and isinstance(value, Mapping):
            moved[key] = {name: _moved(part, place) for name, part in value.items()}
        else:
            moved[key] = _moved(value, place)
    return moved
