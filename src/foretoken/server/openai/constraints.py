"""What an answer has to be: OpenAI's `response_format`, and `grammar` and `regex` as llama.cpp and vLLM."""

from __future__ import annotations

import json

from foretoken.errors import RequestError
from foretoken.server.openai.schemas import ResponseFormat
from foretoken.server.tools.dialect import Forced
from foretoken.types import Constraint


def constraint_of(
    response_format: ResponseFormat | None,
    grammar: str | None,
    regex: str | None,
    forced: Forced | None = None,
    *,
    most_bytes: int,
) -> Constraint | None:
    """The one constraint of a request, None for any text; `forced` is that of a call that must be made.

    Raises RequestError for two at once, and for one of more than `most_bytes` bytes.
    """
    given = {
        "response_format": _of_format(response_format),
        "grammar": None if grammar is None else Constraint("grammar", grammar),
        "regex": None if regex is None else Constraint("regex", regex),
        "tool_choice": None if forced is None else Constraint(forced.kind, forced.source),
    }
    chosen = {name: constraint for name, constraint in given.items() if constraint is not None}
    if len(chosen) > 1:
        raise RequestError(f"{' and '.join(chosen)} cannot be combined.", hint="Send one of them.")
    for name, constraint in chosen.items():
        if len(constraint.source.encode()) > most_bytes:
            raise RequestError(f"{name} is larger than {most_bytes} bytes.", hint="Send a smaller one.")
        return constraint
    return None


def _of_format(wanted: ResponseFormat | None) -> Constraint | None:
    if wanted is None or wanted.type == "text":
        if wanted is not None and wanted.json_schema is not None:
            raise RequestError("response_format: json_schema is for the type 'json_schema'.")
        return None
    if wanted.type == "json_object":
        return Constraint("json_object")
    if wanted.json_schema is None:
        raise RequestError("response_format: the type 'json_schema' needs json_schema.")
    return Constraint("json_schema", json.dumps(wanted.json_schema.schema_))
