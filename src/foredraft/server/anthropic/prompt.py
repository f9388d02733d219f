"""Tokens of a conversation in Anthropic's form."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from foredraft.errors import RequestError
from foredraft.server.anthropic.content import TextBlock, ToolResultBlock, ToolUseBlock, text_of
from foredraft.server.anthropic.schemas import CountTokensRequest
from foredraft.server.openai.tool_use import ToolUse
from foredraft.types import ModelInfo


def encode_messages(body: CountTokensRequest, use: ToolUse, info: ModelInfo) -> list[int]:
    """The prompt's token ids. A last message of the assistant is the beginning of the answer.

    Raises RequestError if the model's template rejects it, ContextLengthError if it does not fit any context.
    """
    turns = as_turns(body)
    use.check_size(turns, info)
    if turns[-1]["role"] != "assistant":
        return use.encode(turns, wishes=body.wishes)
    begun = turns.pop()
    if "tool_calls" in begun:
        raise RequestError(
            "messages: the last message calls tools, and no results follow.",
            hint="Add a user message with a tool_result for each call.",
        )
    return use.encode(turns, begun["content"], body.wishes)


def is_begun(body: CountTokensRequest) -> bool:
    """Whether the client wrote the beginning of the answer."""
    return body.messages[-1].role == "assistant"


# --- messages ------------------------------------------------------------------------------------------


def as_turns(body: CountTokensRequest) -> list[dict[str, Any]]:
    """The messages for a chat template: the system prompt first, adjacent messages of one role merged.

    Anthropic's API merges them too, and many templates only accept alternating roles. Tool results become
    messages of the role "tool". Raises RequestError for a result that belongs to no call.
    """
    conversation = _Conversation()
    if body.system:
        conversation.say("system", text_of(body.system))
    for index, turn in enumerate(body.messages):
        for place, block in enumerate(turn.content):
            if isinstance(block, TextBlock):
                conversation.say(turn.role, block.text)
            elif isinstance(block, ToolUseBlock):
                conversation.call(block)
            else:
                conversation.answer(block, f"messages.{index}.content.{place}")
    return [turn.as_message() for turn in conversation.turns]


@dataclass(slots=True)
class _Turn:
    """One message. Templates write its calls after its text, regardless of their order."""

    role: str
    texts: list[str] = field(default_factory=list)
    calls: list[dict[str, Any]] = field(default_factory=list)
    answers: str | None = None

    def as_message(self) -> dict[str, Any]:
        message: dict[str, Any] = {"role": self.role, "content": "\n".join(self.texts)}
        if self.calls:
            message["tool_calls"] = self.calls
        if self.answers is not None:
            message["tool_call_id"] = self.answers
        return message


class _Conversation:
    """Builds messages from content blocks."""

    def __init__(self) -> None:
        self.turns: list[_Turn] = []
        self._asked: set[str] = set()  # the last message's calls, while only results follow it

    def say(self, role: str, text: str) -> None:
        self._turn(role).texts.append(text)

    def call(self, block: ToolUseBlock) -> None:
        function = {"name": block.name, "arguments": block.input}
        self._turn("assistant").calls.append({"id": block.id, "type": "function", "function": function})
        self._asked.add(block.id)

    def answer(self, block: ToolResultBlock, where: str) -> None:
        if block.tool_use_id not in self._asked:
            raise RequestError(
                f"{where}: the message right before has no tool_use {block.tool_use_id!r}.",
                hint="Put results right after the assistant's message with the calls, before any text.",
            )
        text = text_of(block.content or ())
        if block.is_error and not text.lower().startswith("error"):
            text = f"Error: {text}"  # chat templates have no field for errors
        self.turns.append(_Turn("tool", [text], answers=block.tool_use_id))

    def _turn(self, role: str) -> _Turn:
        if not self.turns or self.turns[-1].role != role:
            self.turns.append(_Turn(role))
            self._asked = set()
        return self.turns[-1]
