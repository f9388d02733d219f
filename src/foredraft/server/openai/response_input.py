"""The conversation in a request of OpenAI's Responses API: messages, calls, and results of calls.

Output items of an earlier response can be sent back unchanged.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, AliasChoices, BeforeValidator, Field, model_validator

from foredraft.errors import RequestError
from foredraft.server.openai.response_tools import TEXT, AnyTools, called_as
from foredraft.server.openai.schemas import MOST_MESSAGES, STATELESS, Body, Objects, only
from foredraft.server.picture_parts import image_part
from foredraft.server.sealed import unsealed
from foredraft.server.tools.arguments import read_arguments

HAND_BACK = f"{STATELESS} Send the earlier input and output items in input instead."


Status = Literal["in_progress", "completed", "incomplete"] | None

# --- text ----------------------------------------------------------------------------------------------


class TextPart(Body):
    """A content part. `annotations`, `logprobs` and the client library's `parsed` come with an output item
    that is sent back; the text is complete without them.
    """

    type: Literal["input_text", "output_text"]
    text: str
    annotations: Objects | None = None
    logprobs: Objects | None = None
    parsed: Any = None


class ImagePart(Body):
    """An image, at an address such as `data:image/png;base64,…`. `detail` has no effect: the model decides
    how much of it it sees.
    """

    type: Literal["input_image"]
    image_url: Annotated[str, Field(min_length=1)]
    detail: Literal["low", "high", "auto", "original"] | None = None
    file_id: Annotated[None, only([None], why="files cannot be stored here; send the image_url")] = None


_PARTS = ("input_text", "output_text", "input_image")


def _check_part(part: Any) -> Any:
    kind = part.get("type") if isinstance(part, dict) else None
    if isinstance(kind, str) and kind not in _PARTS:
        raise ValueError(
            f"a content part of type {kind!r} is not supported; this engine only reads {', '.join(_PARTS)}"
        )
    return part


AnyPart = Annotated[TextPart | ImagePart, Field(discriminator="type")]
Part = Annotated[AnyPart, BeforeValidator(_check_part)]


def _as_parts(content: Any) -> Any:
    return [{"type": "input_text", "text": content}] if isinstance(content, str) else content


Parts = Annotated[
    list[Part], Field(fail_fast=True), BeforeValidator(_as_parts, json_schema_input_type=str | list[Part])
]


def _chat_parts(parts: Sequence[TextPart | ImagePart], where: str) -> list[dict[str, Any]]:
    """Parts in the form of chat completions, which the engine joins in one place; `where`: the field that has
    them.
    """
    return [
        {"type": "text", "text": part.text}
        if isinstance(part, TextPart)
        else image_part(part.image_url, f"{where}.{place}")
        for place, part in enumerate(parts)
    ]


# --- items ---------------------------------------------------------------------------------------------


class InputMessage(Body):
    """A message, or an output item of an earlier response, which also has `id` and `status`."""

    type: Literal["message"] = "message"
    role: Literal["user", "assistant", "system", "developer"]
    content: Parts
    id: str | None = None
    status: Status = None

    @model_validator(mode="after")
    def _shown_by_the_user(self) -> InputMessage:
        if self.role != "user" and any(isinstance(part, ImagePart) for part in self.content):
            raise ValueError("only messages of the user can have images")
        return self

    def as_chat(self, place: int = 0) -> dict[str, Any]:
        """The message for chat templates; it is item `place` of the input."""
        role = "system" if self.role == "developer" else self.role
        return {"role": role, "content": _chat_parts(self.content, f"input.{place}.content")}


_DIRECT = "functions are called by the model directly; remove it"


def _check_arguments(arguments: str) -> str:
    if read_arguments(arguments) is None:
        raise ValueError(
            "the arguments of a call must be the text of a JSON object; send them as they were in the answer"
        )
    return arguments


class FunctionCall(Body):
    """A call that the model made. The client library adds `parsed_arguments`, which is redundant."""

    type: Literal["function_call"]
    call_id: Annotated[str, Field(min_length=1)]
    name: str
    arguments: Annotated[str, AfterValidator(_check_arguments)]
    id: str | None = None
    status: Status = None
    parsed_arguments: Any = None
    namespace: str | None = None
    caller: Annotated[dict[str, Any] | None, only([None, {"type": "direct"}], why=_DIRECT)] = None
    async_: Annotated[
        Literal[False] | None,
        only([None, False], why="background calls are not supported"),
        Field(validation_alias=AliasChoices("async", "async_")),
    ] = None

    def as_chat(self) -> dict[str, Any]:
        """The call in the form of chat completions."""
        function = {"name": called_as(self.name, self.namespace), "arguments": self.arguments}
        return {"id": self.call_id, "type": "function", "function": function}


class CustomCall(Body):
    """A call of a custom tool that the model made."""

    type: Literal["custom_tool_call"]
    call_id: Annotated[str, Field(min_length=1)]
    name: str
    input: str
    id: str | None = None
    status: Status = None
    namespace: str | None = None
    caller: Annotated[dict[str, Any] | None, only([None, {"type": "direct"}], why=_DIRECT)] = None

    def as_chat(self) -> dict[str, Any]:
        """The call in the form of chat completions, as the model wrote it."""
        arguments = json.dumps({TEXT: self.input}, ensure_ascii=False)
        function = {"name": called_as(self.name, self.namespace), "arguments": arguments}
        return {"id": self.call_id, "type": "function", "function": function}


class FunctionCallOutput(Body):
    """The result of a call."""

    type: Literal["function_call_output", "custom_tool_call_output"]
    call_id: Annotated[str, Field(min_length=1)]
    output: Parts
    id: str | None = None
    status: Status = None
    name: str | None = None
    namespace: str | None = None
    caller: Annotated[dict[str, Any] | None, only([None, {"type": "direct"}], why=_DIRECT)] = None

    def as_chat(self, place: int = 0) -> dict[str, Any]:
        """The tool message in the form of chat completions; it is item `place` of the input."""
        parts = _chat_parts(self.output, f"input.{place}.output")
        message = {"role": "tool", "tool_call_id": self.call_id, "content": parts}
        if self.name is None:
            return message
        return {**message, "name": called_as(self.name, self.namespace)}


class ReasoningText(Body):
    """A part of what the model thought."""

    type: Literal["reasoning_text", "summary_text", "text"]
    text: str


Thoughts = Annotated[list[ReasoningText], Field(fail_fast=True)]


class ReasoningInput(Body):
    """What the model thought before the answer that follows. `encrypted_content` of other servers cannot be
    read, and is left out.
    """

    type: Literal["reasoning"]
    summary: Thoughts | None = None
    content: Thoughts | None = None
    encrypted_content: str | None = None
    id: str | None = None
    status: Status = None

    @property
    def text(self) -> str:
        """The thought: its content, or the summary if it has none, or what this server encrypted."""
        told = "\n".join(part.text for part in self.content or self.summary or ())
        return told or unsealed(self.encrypted_content)


class AdditionalTools(Body):
    """Tools that are sent as an item: as if they were in `tools`."""

    type: Literal["additional_tools"]
    tools: AnyTools
    role: str | None = None
    id: str | None = None


_ITEMS = (
    "additional_tools",
    "message",
    "reasoning",
    "function_call",
    "function_call_output",
    "custom_tool_call",
    "custom_tool_call_output",
)


def _check_item(item: Any) -> Any:
    """Check an item's type, which only messages may omit."""
    if not isinstance(item, dict):
        return item
    kind = item.get("type", "message")
    if kind == "item_reference":
        raise ValueError(f"an item_reference cannot be resolved: {HAND_BACK}")
    if isinstance(kind, str) and kind not in _ITEMS:
        raise ValueError(f"an input item of type {kind!r} is not supported; only {', '.join(_ITEMS)} are")
    return {**item, "type": kind}


AnyItem = Annotated[
    InputMessage | ReasoningInput | FunctionCall | CustomCall | FunctionCallOutput | AdditionalTools,
    Field(discriminator="type"),
]
Item = Annotated[AnyItem, BeforeValidator(_check_item)]


def _as_items(given: Any) -> Any:
    return [{"role": "user", "content": given}] if isinstance(given, str) else given


Input = Annotated[
    list[Item],
    Field(min_length=1, max_length=MOST_MESSAGES, fail_fast=True),
    BeforeValidator(_as_items, json_schema_input_type=str | Annotated[list[Item], Field(min_length=1)]),
]


def _only_thought(message: Mapping[str, Any]) -> bool:
    return message.get("content", "") is None and "tool_calls" not in message


def _text(content: str | Sequence[Mapping[str, str]]) -> str:
    return content if isinstance(content, str) else "\n".join(part["text"] for part in content)


def conversation(items: Sequence[AnyItem]) -> list[dict[str, Any]]:
    """The items as messages of chat completions: the assistant's thoughts, text and calls up to the results
    are one message.

    Raises RequestError for a result without its call.
    """
    messages: list[dict[str, Any]] = []
    calls: set[str] = set()
    for place, item in enumerate(items):
        last = messages[-1] if messages else {}
        match item:
            case ReasoningInput(text="") | AdditionalTools():
                pass
            case ReasoningInput():
                if last.get("role") != "assistant":
                    last = {"role": "assistant", "content": None}
                    messages.append(last)
                thoughts = [last["reasoning_content"]] if "reasoning_content" in last else []
                last["reasoning_content"] = "\n".join([*thoughts, item.text])
            case InputMessage(role="assistant") if _only_thought(last):
                last["content"] = item.as_chat()["content"]
            case FunctionCall() | CustomCall():
                calls.add(item.call_id)
                if last.get("role") != "assistant":
                    last = {"role": "assistant", "content": None}
                    messages.append(last)
                last.setdefault("tool_calls", []).append(item.as_chat())
            case InputMessage(role="assistant") if "tool_calls" in last:
                # Text of one answer with calls in between: the original has no line break there.
                last["content"] = _text(last["content"] or []) + _text(item.as_chat()["content"])
            case FunctionCallOutput() if item.call_id not in calls:
                raise RequestError(
                    f"input[{place}].call_id is {item.call_id!r}, but no earlier call has this id.",
                    hint="Also send the function_call item, before its function_call_output.",
                )
            case _:
                messages.append(item.as_chat(place))
    return messages
