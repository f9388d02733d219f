"""Constraint of an answer: Anthropic's `output_config`, or the call that a tool choice requires."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

from foredraft.errors import RequestError
from foredraft.server.openai.constraints import constraint_of
from foredraft.server.openai.schemas import Body, JsonSchema, ResponseFormat
from foredraft.server.openai.tool_use import ToolUse
from foredraft.types import Constraint


class JsonFormat(Body):
    """A JSON schema for the answer."""

    model_config = ConfigDict(populate_by_name=True)

    type: Literal["json_schema"]
    schema_: Annotated[dict[str, Any], Field(alias="schema")]


class OutputConfig(Body):
    """The format of the answer."""

    format: JsonFormat | None = None


def message_constraint(
    output: OutputConfig | None, use: ToolUse, *, begun: bool, most_bytes: int
) -> Constraint | None:
    """The constraint of a request, None if it has none. `begun`: the client wrote the beginning of the
    answer.

    Raises RequestError if it cannot be enforced, or is larger than `most_bytes` bytes.
    """
    wanted = output.format if output is not None else None
    if wanted is None:
        return constraint_of(None, None, None, use, most_bytes=most_bytes)
    if begun:
        raise RequestError(
            "output_config.format applies to the whole answer, but the last message already begins it.",
            hint="Remove that message, or the format.",
        )
    if len(json.dumps(wanted.schema_)) > most_bytes:
        raise RequestError(
            f"output_config.format.schema is larger than {most_bytes} bytes.", hint="Send a smaller schema."
        )
    asked = ResponseFormat(type="json_schema", json_schema=JsonSchema(name="answer", schema_=wanted.schema_))
    return constraint_of(asked, None, None, use, most_bytes=most_bytes)
