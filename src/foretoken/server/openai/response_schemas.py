"""What clients of OpenAI's Responses API send. Unknown fields are errors, as in the other APIs.

Fields that clients do send and that cannot be honoured here are declared with the one value that changes
nothing, so that the error can say why: there is no store, so nothing can be fetched, continued or put in the
background by its id.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from foretoken.server.openai.schemas import MOST_LOGPROBS, Body, Choosing
from foretoken.types import SamplingParams

LOGPROBS = "message.output_text.logprobs"
MOST_METADATA = 16

_STATELESS = "this server is stateless: it stores no responses."
_HAND_BACK = f"{_STATELESS} Hand the earlier input and output items back in input instead."


def only(allowed: Sequence[object], *, why: str) -> BeforeValidator:
    """Refuses every value but `allowed` with `why`, where pydantic would only repeat what is allowed."""

    def check(value: Any) -> Any:
        # By type too: 0 equals False, and is not what was asked for.
        if not any(type(value) is type(one) and value == one for one in allowed):
            raise ValueError(why)
        return value

    return BeforeValidator(check)


# --- input ---------------------------------------------------------------------------------------------


class TextPart(Body):
    """A content part. `annotations` and `logprobs` come with an output item that is handed back."""

    type: Literal["input_text", "output_text"]
    text: str
    annotations: list[dict[str, Any]] | None = None
    logprobs: list[dict[str, Any]] | None = None


def _check_part(part: Any) -> Any:
    kind = part.get("type") if isinstance(part, dict) else None
    if isinstance(kind, str) and kind not in ("input_text", "output_text"):
        raise ValueError(
            f"a content part of type {kind!r} cannot be read; this engine reads text only: "
            "input_text and output_text"
        )
    return part


Part = Annotated[TextPart, BeforeValidator(_check_part)]


def _as_parts(content: Any) -> Any:
    return [{"type": "input_text", "text": content}] if isinstance(content, str) else content


class InputMessage(Body):
    """A message, or an output item of an earlier response, which has an `id` and a `status` too."""

    type: Literal["message"] = "message"
    role: Literal["user", "assistant", "system", "developer"]
    content: Annotated[list[Part], BeforeValidator(_as_parts, json_schema_input_type=str | list[Part])]
    id: str | None = None
    status: Literal["in_progress", "completed", "incomplete"] | None = None
    phase: Annotated[None, only([None], why="the phases of messages are not supported")] = None

    def as_chat(self) -> dict[str, Any]:
        """The message as chat templates know it. Parts stay parts: they are joined where chat's are."""
        role = "system" if self.role == "developer" else self.role
        return {"role": role, "content": [{"type": "text", "text": part.text} for part in self.content]}


def _check_item(item: Any) -> Any:
    kind = item.get("type") if isinstance(item, dict) else None
    if kind == "item_reference":
        raise ValueError(f"an item_reference leads nowhere: {_HAND_BACK}")
    if isinstance(kind, str) and kind != "message":
        raise ValueError(f"an input item of type {kind!r} is not supported; only messages are")
    return item


Item = Annotated[InputMessage, BeforeValidator(_check_item)]


def _as_items(given: Any) -> Any:
    return [{"role": "user", "content": given}] if isinstance(given, str) else given


# --- options -------------------------------------------------------------------------------------------


class TextFormat(Body):
    """What the text must be."""

    type: Annotated[Literal["text"], only(["text"], why="/v1/responses knows the format 'text' only")]


class TextConfig(Body):
    """`text`: the format of the answer."""

    format: TextFormat | None = None
    verbosity: Annotated[None, only([None], why="it is not supported; ask for it in instructions")] = None


class ResponseStreamOptions(Body):
    """OpenAI's clients may turn its padding of events off; there is none here."""

    include_obfuscation: Annotated[
        Literal[False] | None, only([None, False], why="events are not padded here; leave it out or false")
    ] = None


Included = Annotated[
    Literal["message.output_text.logprobs"], only([LOGPROBS], why=f"only {LOGPROBS!r} can be included")
]
MetadataKey = Annotated[str, Field(max_length=64)]
MetadataValue = Annotated[str, Field(max_length=512)]


class ResponseRequest(Choosing):
    """POST /v1/responses. Some ways of choosing tokens are not OpenAI's here: see `Choosing`."""

    model: str | None = None
    input: Annotated[
        list[Item],
        Field(min_length=1),
        BeforeValidator(_as_items, json_schema_input_type=str | Annotated[list[Item], Field(min_length=1)]),
    ]
    instructions: str | None = None
    stream: bool | None = None
    stream_options: ResponseStreamOptions | None = None
    max_output_tokens: Annotated[int, Field(ge=1)] | None = None
    include: list[Included] | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MOST_LOGPROBS)] | None = None
    text: TextConfig | None = None
    metadata: Annotated[dict[MetadataKey, MetadataValue], Field(max_length=MOST_METADATA)] | None = None
    user: str | None = None
    safety_identifier: str | None = None
    parallel_tool_calls: bool | None = None
    tools: Annotated[
        Annotated[list[dict[str, Any]], Field(max_length=0)] | None,
        only([None, []], why="tools are not supported by /v1/responses"),
    ] = None
    tool_choice: Annotated[
        Literal["auto", "none"] | None,
        only([None, "auto", "none"], why="there are no tools to choose; only 'auto' and 'none' are valid"),
    ] = None
    truncation: Annotated[
        Literal["disabled"] | None,
        only([None, "disabled"], why="input is never shortened here; only 'disabled' is valid"),
    ] = None
    store: Annotated[Literal[False] | None, only([None, False], why=_STATELESS)] = None
    background: Annotated[Literal[False] | None, only([None, False], why=_STATELESS)] = None
    previous_response_id: Annotated[None, only([None], why=_HAND_BACK)] = None
    conversation: Annotated[None, only([None], why=_HAND_BACK)] = None
    prompt: Annotated[None, only([None], why="this server keeps no prompt templates")] = None

    @property
    def logprobs(self) -> int | None:
        """How many alternatives to report beside each token; None: no log-probabilities at all."""
        return self.top_logprobs or 0 if self.include else None

    def messages(self) -> list[dict[str, Any]]:
        """The conversation as chat templates know it: the instructions are a system message in front."""
        items = [item.as_chat() for item in self.input]
        if self.instructions is None:
            return items
        return [{"role": "system", "content": self.instructions}, *items]

    def sampling(self) -> SamplingParams:
        """The engine's parameters, with the same defaults as the chat completions."""
        return replace(self.chosen(), max_tokens=self.max_output_tokens, logprobs=self.logprobs)
