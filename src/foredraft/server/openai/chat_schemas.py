"""Request bodies of OpenAI's chat completions.

Fields of this API that are not supported are declared with the values that have no effect, so that the error
can explain why; `unknown_fields` handles all other fields.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AliasChoices, Field, model_validator

from foredraft.errors import RequestError
from foredraft.server.openai.peers import with_forms
from foredraft.server.openai.schemas import (
    MOST_LOGPROBS,
    MOST_MESSAGES,
    N_PREDICT,
    WHOLE,
    Body,
    Hints,
    MaxTokens,
    MostTokens,
    Objects,
    ReasoningBudget,
    ResponseFormat,
    SamplingBody,
    StreamOptions,
    Switch,
    limit,
    only,
)
from foredraft.server.template_variables import Effort, TemplateKwargs, Wishes
from foredraft.server.unknown_fields import Shape

_NO_REFUSAL = "refusals are not separate from the text here; remove it, and put the text in content"
_PART = ("type", "text", "cache_control")
_CACHE_CONTROLS = (None, *({"type": "ephemeral", **ttl} for ttl in ({}, {"ttl": "5m"}, {"ttl": "1h"})))
"""Proxies for Anthropic's models add it to content parts. Every prefix is cached, marked or not."""
_CALL = {**dict.fromkeys(("id", "type", "index")), "function": ("name", "arguments", "parsed_arguments")}
"""Including what clients add to calls that they send back: their position, and their arguments as an object.
"""

_TOOL = {"type": None, "function": ("name", "description", "parameters", "strict")}


class ChatMessage(Body):
    """One message of a conversation. `annotations`, `refusal` and the client library's `parsed` come with an
    answer that is sent back; its text is complete without them.
    """

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | Objects | None = None
    name: str | None = None
    tool_calls: Objects | None = None
    tool_call_id: str | None = None
    refusal: Annotated[None, only([None], why=_NO_REFUSAL)] = None
    annotations: Objects | None = None
    parsed: Any = None
    reasoning_content: Annotated[
        str | None, Field(validation_alias=AliasChoices("reasoning_content", "reasoning"))
    ] = None
    function_call: Annotated[None, only([None], why="send calls as tool_calls")] = None

    shapes: ClassVar[Mapping[str, Shape]] = {"content": _PART, "tool_calls": _CALL}

    @model_validator(mode="after")
    def _in_its_place(self) -> ChatMessage:
        if self.tool_calls and self.role != "assistant":
            raise ValueError("only messages of the assistant can have tool_calls")
        if self.tool_call_id is not None and self.role != "tool":
            raise ValueError("only messages of the role 'tool' can have a tool_call_id")
        for part in self.content if isinstance(self.content, list) else ():
            if part.get("type") == "text" and part.get("cache_control") not in _CACHE_CONTROLS:
                raise ValueError("cache_control can be {'type': 'ephemeral'}, with a ttl of '5m' or '1h'")
        for call in self.tool_calls or ():
            if call.get("type", "function") != "function":
                raise ValueError("only function calls can be sent back")
        return self

    def as_message(self) -> dict[str, Any]:
        """The message for chat templates: "developer" is OpenAI's newer name for "system"."""
        fields = {"role", "content", "name", "tool_calls", "tool_call_id", "reasoning_content"}
        given = self.model_dump(include=fields, exclude_none=True)
        return {**given, "role": "system"} if self.role == "developer" else given


class Prediction(Body):
    """OpenAI's predicted output."""

    type: Literal["content"]
    content: str | Objects


class ThinkingSwitch(Body):
    """Whether to reason, in the form of the servers of DeepSeek, GLM and Kimi."""

    type: Literal["enabled", "disabled", "adaptive", "auto"]
    budget_tokens: MostTokens | None = None

    @property
    def on(self) -> bool | None:
        """None if the model decides."""
        return {"enabled": True, "disabled": False}.get(self.type)


class ChatStreamOptions(StreamOptions):
    """`include_origins`: send with each piece of text which characters of it a drafter proposed."""

    include_origins: Switch = False


class ChatRequest(SamplingBody, Hints):
    """POST /v1/chat/completions."""

    shapes: ClassVar[Mapping[str, Shape]] = {"tools": _TOOL}

    messages: Annotated[list[ChatMessage], Field(min_length=1, max_length=MOST_MESSAGES, fail_fast=True)]
    max_tokens: Annotated[MaxTokens, N_PREDICT] = None
    max_completion_tokens: MaxTokens = None
    stream_options: ChatStreamOptions | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MOST_LOGPROBS), WHOLE] | None = None
    prediction: Prediction | None = None
    response_format: ResponseFormat | None = None
    grammar: str | None = None
    regex: str | None = None
    tools: Objects | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: Effort | None = None
    enable_thinking: bool | None = None
    thinking: ThinkingSwitch | None = None
    reasoning_budget: ReasoningBudget = None
    """The most tokens to think; `thinking.budget_tokens` says the same."""
    chat_template_kwargs: TemplateKwargs | None = None
    continue_final_message: Switch = False
    """The answer goes on from the text of the last message, which is the assistant's."""
    add_generation_prompt: bool | None = None
    """vLLM's counterpart of `continue_final_message`: the two cannot be equal."""

    @model_validator(mode="before")
    @classmethod
    def _forms(cls, given: object) -> object:
        return with_forms(given)

    @property
    def wishes(self) -> Wishes:
        """Settings for the chat template."""
        switches = {self.enable_thinking, self.thinking.on if self.thinking else None} - {None}
        if len(switches) > 1:
            raise RequestError(
                "enable_thinking and thinking contradict each other.", hint="Send one of them."
            )
        return Wishes(
            thinks=next(iter(switches), None),
            effort=self.reasoning_effort,
            budget=limit(self.most_thought),
            variables=self.chat_template_kwargs,
        )

    @property
    def most_thought(self) -> int | None:
        """The budget of the thought, by either name; -1 is none. Raises RequestError if they differ."""
        also = self.thinking.budget_tokens if self.thinking else None
        if None not in (also, self.reasoning_budget) and also != self.reasoning_budget:
            raise RequestError(
                "reasoning_budget and thinking.budget_tokens differ.", hint="Send one of them."
            )
        return also if self.reasoning_budget is None else self.reasoning_budget

    @property
    def with_origins(self) -> bool:
        """Whether the origins of the text are wanted."""
        return self.stream_options is not None and self.stream_options.include_origins

    @property
    def continues(self) -> bool:
        """Whether the answer goes on from the last message. Raises RequestError for a contradiction."""
        if self.continue_final_message and self.add_generation_prompt:
            raise RequestError(
                "continue_final_message and add_generation_prompt are both true: an answer is either "
                "continued or begun.",
                hint="Remove add_generation_prompt, or set it to false.",
            )
        if self.add_generation_prompt is False and not self.continue_final_message:
            raise RequestError(
                "add_generation_prompt is false, but nothing is continued.",
                hint="Set continue_final_message to true to continue the assistant's last message.",
            )
        return self.continue_final_message

    @property
    def most_tokens(self) -> int | None:
        """The maximum length of the answer, by either name."""
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    @property
    def contradicts_itself(self) -> bool:
        """Whether the two maximum lengths differ."""
        return self.max_tokens is not None and self.max_tokens != self.most_tokens


def as_messages(messages: Sequence[ChatMessage]) -> list[dict[str, Any]]:
    """A conversation for chat templates."""
    return [message.as_message() for message in messages]
