"""Tools of a request in Anthropic's form, converted to the form that all APIs share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from foredraft.protocols import Tokenizer
from foredraft.server.anthropic.content import CacheControl
from foredraft.server.openai.schemas import Body
from foredraft.server.openai.tool_use import ToolUse, tool_use
from foredraft.server.tools.choice import MAX_TOOLS

_MODES = {"auto": "auto", "any": "required", "none": "none"}


class ToolParam(Body):
    """A tool defined by the client."""

    type: Literal["custom"] | None = None
    name: Annotated[str, Field(pattern=r"^[a-zA-Z0-9_-]{1,64}$")]
    description: str | None = None
    input_schema: dict[str, Any]
    strict: bool | None = None
    cache_control: CacheControl | None = None
    allowed_callers: Annotated[list[Literal["direct"]], Field(fail_fast=True)] | None = None

    @model_validator(mode="before")
    @classmethod
    def _of_the_client(cls, tool: object) -> object:
        kind = tool.get("type") if isinstance(tool, Mapping) else None
        if isinstance(kind, str) and kind != "custom":
            raise ValueError(
                f"the type {kind!r} is a tool defined by Anthropic, which is not available here; send a tool "
                "of your own, with name, description and input_schema"
            )
        return tool

    @field_validator("input_schema")
    @classmethod
    def _of_an_object(cls, schema: dict[str, Any]) -> dict[str, Any]:
        if schema.get("type") != "object":
            raise ValueError('must be a JSON schema of type object: {"type": "object", "properties": {…}}')
        # The client library's types allow null for omitted fields.
        left_out = [key for key in ("properties", "required") if key in schema and schema[key] is None]
        return {key: value for key, value in schema.items() if key not in left_out}

    def as_function(self) -> dict[str, Any]:
        """The tool in the form of OpenAI's Responses API."""
        return {
            "type": "function",
            "name": self.name,
            "description": self.description,
            "parameters": self.input_schema,
            "strict": bool(self.strict),
        }


Tools = Annotated[list[ToolParam], Field(max_length=MAX_TOOLS, fail_fast=True)]


class ToolChoiceParam(Body):
    """Whether the model may (auto), must (any, tool) or must not (none) call a tool."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None

    @model_validator(mode="after")
    def _named(self) -> ToolChoiceParam:
        if (self.type == "tool") != (self.name is not None):
            raise ValueError("a name is required for the type 'tool', and not allowed for others")
        return self

    def as_function(self) -> str | dict[str, Any]:
        """The choice in the form of OpenAI's Responses API."""
        if self.type == "tool":
            return {"type": "function", "name": self.name}
        return _MODES[self.type]


def message_tools(
    tokenizer: Tokenizer, tools: Sequence[ToolParam] | None, choice: ToolChoiceParam | None
) -> ToolUse:
    """The tools that an answer may call. Raises RequestError."""
    functions = [tool.as_function() for tool in tools or ()]
    wanted = choice.as_function() if choice is not None else None
    parallel = choice is None or not choice.disable_parallel_tool_use
    return tool_use(tokenizer, functions, wanted, parallel=parallel, flat=True)
