"""JSON schemas for calls: those of functions put together into one, with their references, and rules."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from foredraft.errors import RequestError
from foredraft.sampling.json_schema import prepare
from foredraft.sampling.trial import WHITESPACE
from foredraft.server.tools.choice import Tool

ROOM: Final = 4 << 20
"""Characters of the rules for values one by one. Each that refers to others has all of them with it."""

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

    The name comes first because the parser can announce a call only when it knows the name.
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
    """The schema as it stands in a Lark grammar: with as little white space as one alone allows, unless it
    says otherwise itself.
    """
    own = schema.get("x-guidance")
    options = {"whitespace_pattern": WHITESPACE, **(own if isinstance(own, Mapping) else {})}
    return json.dumps({**schema, "x-guidance": options})


def arguments_schema(tool: Tool) -> dict[str, Any]:
    """The schema of a function's arguments, as one by itself."""
    return {"$ref": f"{_DEFINITIONS}/{tool.name}", "$defs": definitions([tool])}


def argument_rules(tools: Sequence[Tool]) -> list[str]:
    """Lark rules `arguments_0`, `arguments_1`, … for the arguments of these functions as JSON."""
    bodies = (embedded(arguments_schema(tool)) for tool in tools)
    return [f"arguments_{index}: %json {body}" for index, body in enumerate(bodies)]


def argument_schema(tool: Tool, schema: object) -> Any:
    """A schema out of a function's parameters as one by itself: its references lead to where they did."""
    if "$ref" not in json.dumps(schema):
        return schema
    moved = _moved(schema, f"{_DEFINITIONS}/{tool.name}")
    return {**moved, "$defs": definitions([tool])}


def members(must: Sequence[str], may: Sequence[str], comma: str) -> str:
    """Lark for members in this order with commas between them: all of `must`, and any of `may`."""
    between = json.dumps(comma)
    if must:
        return f"{f' {between} '.join(must)} {_further(may, between)}"
    begun = [f"{member} {_further(may[place + 1 :], between)}" for place, member in enumerate(may)]
    return f"({' | '.join(begun)})?" if begun else ""


def _further(may: Sequence[str], between: str) -> str:
    return " ".join(f"({between} {member})?" for member in may)


def properties_of(tool: Tool) -> Mapping[str, Any] | None:
    """The schemas of a function's arguments by their names; None where they are not listed, so that any are.

    Raises RequestError for a strict function that says more about its arguments as a whole.
    """
    schema = prepared(tool)
    if tool.strict and (odd := sorted(set(schema) - _OF_MEMBERS)):
        raise unfollowable(tool, f"they have {odd[0]!r}")
    properties = schema.get("properties") or {}
    return None if not properties and schema.get("additionalProperties") is not False else properties


def unfollowable(tool: Tool, why: str) -> RequestError:
    """The error for a strict function whose schema says what no grammar of its dialect can."""
    return RequestError(
        f"The parameters of the function {tool.name!r} cannot be followed in the form that this model writes "
        f"calls in: {why}.",
        hint='With "strict": false they are left to the model.',
    )


def definitions(tools: Sequence[Tool]) -> dict[str, Any]:
    """Each function's parameters under its name, prepared for the grammar. References inside them still lead
    to the same place. Raises RequestError for parameters that cannot be followed.
    """
    return {tool.name: _moved(prepared(tool), f"{_DEFINITIONS}/{tool.name}") for tool in tools}


def prepared(tool: Tool) -> dict[str, Any]:
    """A function's parameters, prepared for a grammar. Raises RequestError if they cannot be followed."""
    try:
        return prepare(tool.parameters, strict=tool.strict).schema
    except RequestError as error:
        raise RequestError(
            f"The parameters of the function {tool.name!r} cannot be followed. {error.message}",
            hint=error.hint,
        ) from None


def _moved(schema: object, place: str) -> Any:
    """A schema whose references to its own root ("#…") lead to `place` instead.

    A schema that has an `$id` of its own is a document of its own, so its references stay.
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
