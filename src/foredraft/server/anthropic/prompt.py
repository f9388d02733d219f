"""A conversation in Anthropic's form as the model's tokens."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from foredraft.errors import RequestError
from foredraft.server.anthropic.content import TextBlock, ToolResultBlock, ToolUseBlock, text_of
from foredraft.server.anthropic.schemas import CountTokensRequest
from foredraft.server.openai.tool_use import ToolUse
from foredraft.types import ModelInfo


def encode_messages(body: CountTokensRequest, use: ToolUse, info: ModelInfo) -> list[int]:
    """The token ids of the prompt. A last message of the assistant is the beginning of the answer.

    Raises RequestError for what the model's template rejects, ContextLengthError for what no context holds.
    """
    turns = as_turns(body)
    use.check_size(turns, info)
    if turns[-1]["role"] != "assistant":
        return use.encode(turns, wishes=body.wishes)
    begun = turns.pop()
    if "tool_calls" in begun:
        raise RequestError(
            "messages: the last one calls tools, and nothing answers it.",
            hint="Send a message of the user with a tool_result for each call.",
        )
    return use.encode(turns, begun["content"], body.wishes)


def is_begun(body: CountTokensRequest) -> bool:
    """Whether the client has written the beginning of the answer."""
    return body.messages[-1].role == "assistant"


# --- messages ------------------------------------------------------------------------------------------


def as_turns(body: CountTokensRequest) -> list[dict[str, Any]]:
    """Messages as chat templates know them: the system prompt first, neighbours of one role as one message.

    Anthropic's API combines such neighbours too, and many templates accept alternating roles only. Results of
    tools become messages of the role "tool". Raises RequestError for one that answers no call.
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
    """One message. Templates write its calls after its text, wherever that stood."""

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
    """Puts blocks together to messages."""

    def __init__(self) -> None:
        self.turns: list[_Turn] = []
        self._asked: set[str] = set()  # the calls of the last message, if only results came since

    def say(self, role: str, text: str) -> None:
        self._turn(role).texts.append(text)

    def call(self, block: ToolUseBlock) -> None:
        function = {"name": block.name, "arguments": block.input}
        self._turn("assistant").calls.append({"id": block.id, "type": "function", "function": function})
        self._asked.add(block.id)

    def answer(self, block: ToolResultBlock, where: str) -> None:
        if block.tool_use_id not in self._asked:
            raise RequestError(
                f"{where}: there is no tool_use {block.tool_use_id!r} in the message right before.",
                hint="Results come right after the message of the assistant that asks, before any text.",
            )
        text = text_of(block.content or ())
        if block.is_error and not text.lower().startswith("error"):
            text = f"Error: {text}"  # chat templates have no other place to say so
        self.turns.append(_Turn("tool", [text], answers=block.tool_use_id))

    def _turn(self, role: str) -> _Turn:
        if not self.turns or self.turns[-1].role != role:
            self.turns.append(_Turn(role))
            self._asked = set()
        return self.turns[-1]
