"""Constraints of answers: OpenAI's `response_format`, and `grammar` and `regex` as in llama.cpp and vLLM."""

from __future__ import annotations

import json
from typing import Any

from foredraft.errors import RequestError
from foredraft.sampling.json_schema import prepare
from foredraft.server.openai.schemas import ResponseFormat
from foredraft.server.openai.tool_use import ToolUse
from foredraft.types import Constraint


def constraint_of(
    response_format: ResponseFormat | None,
    grammar: str | None,
    regex: str | None,
    use: ToolUse | None = None,
    *,
    most_bytes: int,
) -> Constraint | None:
    """The constraint of a request, None if it has none. With `use` the answer may or must contain calls
    instead; a format then applies to answers without calls.

    Raises RequestError for two constraints, and for one larger than `most_bytes` bytes.
    """
    given = {
        "response_format": _of_format(response_format),
        "grammar": None if grammar is None else Constraint("grammar", grammar),
        "regex": None if regex is None else Constraint("regex", regex),
    }
    chosen = {name: constraint for name, constraint in given.items() if constraint is not None}
    if len(chosen) > 1:
        raise RequestError(f"{' and '.join(chosen)} cannot be combined.", hint="Send one of them.")
    for name, constraint in chosen.items():
        if len(constraint.source.encode()) > most_bytes:
            raise RequestError(
                f"{name} is larger than {most_bytes} bytes.", hint="Send a smaller constraint."
            )
    asked = next(iter(chosen.values()), None)
    return asked if use is None else _with_calls(asked, use, most_bytes)


def _with_calls(asked: Constraint | None, use: ToolUse, most_bytes: int) -> Constraint | None:
    """The constraint of an answer that must follow `asked`, or consist of calls."""
    if asked is not None and asked.kind in ("grammar", "regex"):
        if use.bound:
            raise RequestError(
                f"A {asked.kind} cannot be combined with calls that are constrained by a grammar: calls of "
                "strict functions, required calls, and a limit of one call.",
                hint="Use only one of them.",
            )
        return asked
    schema = None if asked is None else _schema_of(asked)
    calls = use.constraint(schema)
    if calls is None:
        return asked
    if len(calls.source.encode()) > most_bytes:
        raise RequestError(
            f"The schemas of all functions together exceed {most_bytes} bytes.",
            hint='Send fewer or smaller ones, or set "strict" to false so that they are not enforced.',
        )
    use.check(calls, schema)
    return calls


def _schema_of(json_constraint: Constraint) -> dict[str, Any]:
    if json_constraint.kind == "json_object":
        return {"type": "object"}
    return prepare(json.loads(json_constraint.source), strict=json_constraint.strict).schema


def _of_format(wanted: ResponseFormat | None) -> Constraint | None:
    if wanted is None:
        return None
    if wanted.type != "json_schema" and wanted.json_schema is not None:
        raise RequestError("response_format: json_schema needs the type 'json_schema'.")
    if wanted.type == "text":
        return None
    if wanted.type == "json_object":
        return Constraint("json_object")
    if wanted.json_schema is None:
        raise RequestError("response_format: the type 'json_schema' needs json_schema.")
    schema, strict = wanted.json_schema.schema_, wanted.json_schema.strict is True
    return Constraint("json_schema", json.dumps(schema), strict)
