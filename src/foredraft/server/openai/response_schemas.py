"""Request bodies of OpenAI's Responses API. `unknown_fields` handles fields that are not declared here.

Fields that clients send but that are not supported are declared with the values that have no effect, so that
the error can explain why: responses are not stored, so none can be fetched, continued or run in the
background by its id; and the only tools are those that the client runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, model_validator

from foredraft.server.openai.response_input import HAND_BACK, AdditionalTools, Input, conversation
from foredraft.server.openai.response_tools import AnyTools, Offered, left_out, tool_shapes
from foredraft.server.openai.schemas import (
    MOST_LOGPROBS,
    STATELESS,
    WHOLE,
    Body,
    Choosing,
    Hints,
    JsonSchema,
    MostTokens,
    ReasoningBudget,
    ResponseFormat,
    Scheduling,
    Texts,
    limit,
    only,
)
from foredraft.server.template_variables import Effort, TemplateKwargs, Wishes
from foredraft.server.unknown_fields import Shape
from foredraft.types import Constraint, SamplingParams

LOGPROBS = "message.output_text.logprobs"
ENCRYPTED = "reasoning.encrypted_content"


class TextFormat(Body):
    """Format of the text. A schema is always enforced; see `JsonSchema` about `strict`."""

    type: Literal["text", "json_object", "json_schema"]
    name: Annotated[str, Field(pattern=r"^[a-zA-Z0-9_-]{1,64}$")] | None = None
    schema_: Annotated[dict[str, Any] | None, Field(alias="schema")] = None
    description: str | None = None
    strict: bool | None = None

    @model_validator(mode="after")
    def _check(self) -> TextFormat:
        if self.type != "json_schema" and self.model_fields_set != {"type"}:
            raise ValueError("name, schema, description and strict need the type 'json_schema'")
        if self.type == "json_schema" and (self.name is None or self.schema_ is None):
            raise ValueError("the type 'json_schema' needs a name and a schema")
        return self

    def as_chat(self) -> ResponseFormat:
        """The format in the form of chat completions."""
        if self.name is None or self.schema_ is None:
            return ResponseFormat(type=self.type)
        schema = JsonSchema(name=self.name, schema_=self.schema_, strict=self.strict)
        return ResponseFormat(type=self.type, json_schema=schema)


class TextConfig(Body):
    """`text`: the format of the answer."""

    format: TextFormat | None = None


class Reasoning(Body):
    """`reasoning`: its amount. With `summary` the items of an answer have it as their summary, otherwise as
    their content; it is whole in both.
    """

    effort: Effort | None = None
    summary: Literal["auto", "concise", "detailed"] | None = None
    generate_summary: Literal["auto", "concise", "detailed"] | None = None
    """OpenAI's older name of `summary`."""

    @property
    def summarised(self) -> bool:
        """Whether a summary was asked for."""
        return (self.summary or self.generate_summary) is not None


class ResponseStreamOptions(Body):
    """No options have an effect. OpenAI's clients may turn off the padding of events."""


class ResponseRequest(Choosing, Scheduling, Hints):
    """POST /v1/responses. Some sampling fields are not part of OpenAI's API: see `Choosing`."""

    shapes: ClassVar[Mapping[str, Shape]] = {"tools": ("type", "name", "description", "parameters", "strict")}

    model: str | None = None
    input: Input
    instructions: str | None = None
    stream: bool | None = None
    stream_options: ResponseStreamOptions | None = None
    max_output_tokens: MostTokens | None = None
    include: Texts | None = None
    """Optional parts of an answer. Only log-probabilities and thoughts to hand back exist here."""
    top_logprobs: Annotated[int, Field(ge=0, le=MOST_LOGPROBS), WHOLE] | None = None
    text: TextConfig | None = None
    tools: AnyTools | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    max_tool_calls: MostTokens | None = None
    """The maximum number of calls of OpenAI's own tools, of which there are none. Functions do not count."""
    reasoning: Reasoning | None = None
    reasoning_budget: ReasoningBudget = None
    chat_template_kwargs: TemplateKwargs | None = None
    background: Annotated[Literal[False] | None, only([None, False], why=STATELESS)] = None
    previous_response_id: Annotated[None, only([None], why=HAND_BACK)] = None
    conversation: Annotated[None, only([None], why=HAND_BACK)] = None
    prompt: Annotated[None, only([None], why="prompt templates are not supported")] = None

    @model_validator(mode="after")
    def _check_left_out(self) -> ResponseRequest:
        if (kinds := left_out(self.all_tools)) and len(kinds) == len(self.all_tools or ()):
            raise ValueError(
                f"tools: {kinds[0]!r} is a tool that OpenAI's servers run, and not available here; send "
                "functions of your own"
            )
        return self

    @staticmethod
    def parts(name: str, value: object) -> list[dict[str, Any]]:
        """See `Body`. Of tools the functions."""
        found = Choosing.parts(name, value)
        return tool_shapes(found) if name == "tools" else found

    def passed_over(self, at: str = "") -> Iterator[str]:
        """The ignored fields, including tools and values of `include` that are not supported."""
        yield from super().passed_over(at)
        yield from (f"{at}tools.{kind}" for kind in left_out(self.all_tools))
        yield from (f"{at}include.{name}" for name in self.include or () if name not in (LOGPROBS, ENCRYPTED))

    @property
    def logprobs(self) -> int | None:
        """The number of alternatives to report beside each token; None: no log-probabilities."""
        return self.top_logprobs or 0 if LOGPROBS in (self.include or ()) else None

    @property
    def wishes(self) -> Wishes:
        """Settings for the chat template."""
        effort = self.reasoning.effort if self.reasoning else None
        return Wishes(effort=effort, budget=limit(self.reasoning_budget), variables=self.chat_template_kwargs)

    @property
    def all_tools(self) -> list[dict[str, Any]] | None:
        """The tools, wherever they were sent."""
        added = [tool for item in self.input if isinstance(item, AdditionalTools) for tool in item.tools]
        return [*(self.tools or ()), *added] if added else self.tools

    @property
    def offered(self) -> Offered:
        """The tools, as functions."""
        return Offered(self.all_tools)

    @property
    def format(self) -> ResponseFormat | None:
        """The text's format in the form of chat completions."""
        wanted = self.text.format if self.text else None
        return wanted.as_chat() if wanted else None

    def messages(self) -> list[dict[str, Any]]:
        """The conversation in the form of chat completions, with the instructions as a system message in
        front.

        Raises RequestError for a result without its call.
        """
        messages = conversation(self.input)
        if self.instructions is None:
            return messages
        return [{"role": "system", "content": self.instructions}, *messages]

    def sampling(self, constraint: Constraint | None) -> SamplingParams:
        """The engine's sampling parameters, with the same defaults as in chat completions."""
        return self.chosen(max_tokens=self.max_output_tokens, logprobs=self.logprobs, constraint=constraint)
