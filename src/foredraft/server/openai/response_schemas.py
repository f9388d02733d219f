"""What clients of OpenAI's Responses API send. See `unknown_fields` for what they send beside.

Fields that clients do send and that cannot be honoured here are declared with the values that change
nothing, so that the error can say why: there is no store, so nothing can be fetched, continued or put in the
background by its id; and the only tools are the client's own functions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, model_validator

from foredraft.server.openai.response_input import HAND_BACK, Input, conversation
from foredraft.server.openai.schemas import (
    MOST_LOGPROBS,
    STATELESS,
    WHOLE,
    Body,
    Choosing,
    Hints,
    JsonSchema,
    MostTokens,
    ResponseFormat,
    Scheduling,
    Texts,
    only,
)
from foredraft.server.template_variables import Effort, TemplateKwargs, Wishes
from foredraft.server.unknown_fields import Shape
from foredraft.types import Constraint, SamplingParams

LOGPROBS = "message.output_text.logprobs"


class TextFormat(Body):
    """What the text must be. A schema is always followed; see `JsonSchema` about `strict`."""

    type: Literal["text", "json_object", "json_schema"]
    name: Annotated[str, Field(pattern=r"^[a-zA-Z0-9_-]{1,64}$")] | None = None
    schema_: Annotated[dict[str, Any] | None, Field(alias="schema")] = None
    description: str | None = None
    strict: bool | None = None

    @model_validator(mode="after")
    def _check(self) -> TextFormat:
        if self.type != "json_schema" and self.model_fields_set != {"type"}:
            raise ValueError("name, schema, description and strict are for the type 'json_schema'")
        if self.type == "json_schema" and (self.name is None or self.schema_ is None):
            raise ValueError("the type 'json_schema' needs a name and a schema")
        return self

    def as_chat(self) -> ResponseFormat:
        """The same as chat completions have it."""
        if self.name is None or self.schema_ is None:
            return ResponseFormat(type=self.type)
        schema = JsonSchema(name=self.name, schema_=self.schema_, strict=self.strict)
        return ResponseFormat(type=self.type, json_schema=schema)


class TextConfig(Body):
    """`text`: the format of the answer."""

    format: TextFormat | None = None


class Reasoning(Body):
    """`reasoning`: how much of it. Answers have no summary of it."""

    effort: Effort | None = None


class ResponseStreamOptions(Body):
    """There are none here. OpenAI's clients may turn its padding of events off."""


def _check_tool(tool: Any) -> Any:
    kind = tool.get("type") if isinstance(tool, dict) else None
    if isinstance(kind, str) and kind != "function":
        raise ValueError(f"a tool of type {kind!r} is not offered here; only functions of your own are")
    return tool


AnyTool = Annotated[dict[str, Any], BeforeValidator(_check_tool)]


class ResponseRequest(Choosing, Scheduling, Hints):
    """POST /v1/responses. Some ways of choosing tokens are not OpenAI's here: see `Choosing`."""

    shapes: ClassVar[Mapping[str, Shape]] = {"tools": ("type", "name", "description", "parameters", "strict")}

    model: str | None = None
    input: Input
    instructions: str | None = None
    stream: bool | None = None
    stream_options: ResponseStreamOptions | None = None
    max_output_tokens: MostTokens | None = None
    include: Texts | None = None
    """Parts of an answer beside its text. Only log-probabilities ever exist here."""
    top_logprobs: Annotated[int, Field(ge=0, le=MOST_LOGPROBS), WHOLE] | None = None
    text: TextConfig | None = None
    tools: Annotated[list[AnyTool], Field(fail_fast=True)] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    max_tool_calls: MostTokens | None = None
    """The most calls of OpenAI's own tools: there are never any. Functions do not count."""
    reasoning: Reasoning | None = None
    chat_template_kwargs: TemplateKwargs | None = None
    background: Annotated[Literal[False] | None, only([None, False], why=STATELESS)] = None
    previous_response_id: Annotated[None, only([None], why=HAND_BACK)] = None
    conversation: Annotated[None, only([None], why=HAND_BACK)] = None
    prompt: Annotated[None, only([None], why="this server keeps no prompt templates")] = None

    def passed_over(self, at: str = "") -> Iterator[str]:
        """Also what cannot be included."""
        yield from super().passed_over(at)
        yield from (f"{at}include.{name}" for name in self.include or () if name != LOGPROBS)

    @property
    def logprobs(self) -> int | None:
        """How many alternatives to report beside each token; None: no log-probabilities at all."""
        return self.top_logprobs or 0 if LOGPROBS in (self.include or ()) else None

    @property
    def wishes(self) -> Wishes:
        """What it says to the chat template."""
        effort = self.reasoning.effort if self.reasoning else None
        return Wishes(effort=effort, variables=self.chat_template_kwargs)

    @property
    def format(self) -> ResponseFormat | None:
        """What the text must be, as chat completions have it."""
        wanted = self.text.format if self.text else None
        return wanted.as_chat() if wanted else None

    def messages(self) -> list[dict[str, Any]]:
        """The conversation as chat completions have it: the instructions are a system message in front.

        Raises RequestError for the output of a call that is not there.
        """
        messages = conversation(self.input)
        if self.instructions is None:
            return messages
        return [{"role": "system", "content": self.instructions}, *messages]

    def sampling(self, constraint: Constraint | None) -> SamplingParams:
        """The engine's parameters, with the same defaults as the chat completions."""
        return self.chosen(max_tokens=self.max_output_tokens, logprobs=self.logprobs, constraint=constraint)
