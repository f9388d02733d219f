"""Tokens of a conversation in Anthropic's form."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from foredraft.errors import RequestError
from foredraft.images import EncodedPrompt
from foredraft.protocols import Vision
from foredraft.server.anthropic.content import (
    ImageBlock,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
    text_of,
)
from foredraft.server.anthropic.schemas import CountTokensRequest
from foredraft.server.openai.tool_use import ToolUse
from foredraft.server.sealed import unsealed
from foredraft.types import Message, ModelInfo


def encode_messages(
    body: CountTokensRequest,
    turns: Sequence[Message],
    use: ToolUse,
    info: ModelInfo,
    vision: Vision | None = None,
) -> tuple[ToolUse, EncodedPrompt]:
    """The tools for the answer, and the prompt of `turns`, which are those of the body with their images
    read. A last message of the assistant is the beginning of the answer.

    Raises RequestError if the model's template rejects it, ContextLengthError if it does not fit any context.
    """
    use.check_size(turns, info)
    if turns[-1]["role"] != "assistant":
        return use.encode(turns, body.wishes, vision)
    if "tool_calls" in turns[-1]:
        raise RequestError(
            "messages: the last message calls tools, and no results follow.",
            hint="Add a user message with a tool_result for each call.",
        )
    return use.encode_continued(turns, body.wishes, vision)


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
            where = f"messages.{index}.content.{place}"
            if isinstance(block, TextBlock):
                conversation.say(turn.role, block.text)
            elif isinstance(block, ImageBlock):
                conversation.show(block.as_part(where))
            elif isinstance(block, ToolUseBlock):
                conversation.call(block)
            elif isinstance(block, ThinkingBlock):
                conversation.think(block.thinking or unsealed(block.signature))
            elif isinstance(block, ToolResultBlock):
                conversation.answer(block, where)
    return [turn.as_message() for turn in conversation.turns]


@dataclass(slots=True)
class _Turn:
    """One message. Templates write its calls after its text, regardless of their order."""

    role: str
    parts: list[dict[str, Any]] = field(default_factory=list)
    thoughts: list[str] = field(default_factory=list)
    calls: list[dict[str, Any]] = field(default_factory=list)
    answers: str | None = None

    def as_message(self) -> dict[str, Any]:
        content: Any = self.parts
        if all(part["type"] == "text" for part in self.parts):
            content = "\n".join(part["text"] for part in self.parts)
        message: dict[str, Any] = {"role": self.role, "content": content}
        if self.thoughts:
            message["reasoning_content"] = "\n".join(self.thoughts)
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
        self._turn(role).parts.append({"type": "text", "text": text})

    def show(self, image: dict[str, Any]) -> None:
        self._turn("user").parts.append(image)

    def think(self, thought: str) -> None:
        turn = self._turn("assistant")
        if thought:
            turn.thoughts.append(thought)

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
        given = block.content or []
        text = text_of([part for part in given if isinstance(part, TextBlock)])
        if block.is_error and not text.lower().startswith("error"):
            text = f"Error: {text}"  # chat templates have no field for errors
        images = [
            part.as_part(f"{where}.content.{place}")
            for place, part in enumerate(given)
            if isinstance(part, ImageBlock)
        ]
        parts = [{"type": "text", "text": text}, *images]
        self.turns.append(_Turn("tool", parts, answers=block.tool_use_id))

    def _turn(self, role: str) -> _Turn:
        if not self.turns or self.turns[-1].role != role:
            self.turns.append(_Turn(role))
            self._asked = set()
        return self.turns[-1]
