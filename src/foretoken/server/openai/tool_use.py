"""Tools in chat completions: into the prompt on the way in, out of the text on the way back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from foretoken.engine.prompt import encode_chat
from foretoken.protocols import Tokenizer
from foretoken.server.tools.choice import Tool, ToolChoice, check_choice, check_tools
from foretoken.server.tools.deltas import ArgumentsDelta, CallStart, Delta, TextDelta
from foretoken.server.tools.detect import dialect_for, template_supports_tools
from foretoken.server.tools.dialect import Dialect, Forced, ToolParser
from foretoken.server.tools.history import plain_messages, template_messages
from foretoken.types import Message, TokenEvent


@dataclass(frozen=True, slots=True)
class ToolUse:
    """What a request may call, in the form that its model knows."""

    dialect: Dialect
    tools: tuple[Tool, ...]
    choice: ToolChoice
    forced: Forced | None
    markers: Mapping[int, str] = field(default_factory=dict)

    def encode(self, tokenizer: Tokenizer, messages: Sequence[Message]) -> list[int]:
        """The prompt. Raises RequestError for what the model's template rejects."""
        offered = self.choice.callable(self.tools)
        if template_supports_tools(tokenizer.chat_template or ""):
            variables = {"tools": [tool.as_message() for tool in offered]} if offered else None
            tokens = encode_chat(tokenizer, template_messages(messages, self.dialect), variables)
        else:
            tokens = encode_chat(tokenizer, plain_messages(messages, offered))
        if self.forced is not None and self.forced.prefix:
            tokens += tokenizer.encode(self.forced.prefix, special=True)
        return tokens

    def reader(self) -> AnswerReader | None:
        """For one answer; None where nothing can be called, and text is just text."""
        callable_tools = self.choice.callable(self.tools)
        if not callable_tools:
            return None
        reader = AnswerReader(self.dialect.parser([tool.name for tool in callable_tools]), self.markers)
        if self.forced is not None and self.forced.prefix:
            reader.begin(self.forced.prefix)
        return reader


def tool_use(tokenizer: Tokenizer, tools: object, choice: object, *, parallel: bool) -> ToolUse:
    """The tools of a request, checked. Raises RequestError that says what is wrong with them."""
    checked = check_tools(tools)
    chosen = check_choice(choice, checked, parallel=parallel)
    dialect = dialect_for(tokenizer.chat_template or "")
    forced = dialect.grammar(checked, chosen) if chosen.forced else None
    return ToolUse(dialect, checked, chosen, forced, control_markers(tokenizer, dialect))


def control_markers(tokenizer: Tokenizer, dialect: Dialect) -> dict[int, str]:
    """The dialect's markers that are control tokens here: such tokens have no text of their own."""
    found: dict[int, str] = {}
    for marker in dialect.markers:
        tokens = tokenizer.encode(marker, special=True)
        if len(tokens) == 1 and not tokenizer.token_bytes(tokens[0]):
            found[tokens[0]] = marker
    return found


class AnswerReader:
    """Takes one answer apart into text and calls, as it comes."""

    def __init__(self, parser: ToolParser, markers: Mapping[int, str]) -> None:
        self._parser = parser
        self._markers = markers
        self._pending: list[Delta] = []
        self.called = False

    def begin(self, prefix: str) -> None:
        """The prompt ended with this beginning of the answer."""
        self._pending = self._parser.feed(prefix)

    def read(self, event: TokenEvent) -> list[dict[str, Any]]:
        """OpenAI's deltas of a token."""
        return self._given(self._parser.feed(event.text + self._markers.get(event.token, "")))

    def end(self, text: str) -> list[dict[str, Any]]:
        """OpenAI's deltas of the answer's last text, and of what was held back."""
        return self._given(self._parser.feed(text) + self._parser.finish())

    def _given(self, deltas: list[Delta]) -> list[dict[str, Any]]:
        pending, self._pending = self._pending, []
        given = [_as_delta(delta) for delta in pending + deltas]
        self.called = self.called or any("tool_calls" in delta for delta in given)
        return given


def _as_delta(delta: Delta) -> dict[str, Any]:
    match delta:
        case TextDelta(text):
            return {"content": text}
        case CallStart(index, call, name):
            function = {"name": name, "arguments": ""}
            return {"tool_calls": [{"index": index, "id": call, "type": "function", "function": function}]}
        case ArgumentsDelta(index, text):
            return {"tool_calls": [{"index": index, "function": {"arguments": text}}]}


def add_call_deltas(calls: list[dict[str, Any]], deltas: Sequence[Mapping[str, Any]]) -> None:
    """Fold `tool_calls` deltas into whole calls."""
    for delta in deltas:
        if "id" in delta:
            calls.append({"id": delta["id"], "type": "function", "function": dict(delta["function"])})
        else:
            calls[delta["index"]]["function"]["arguments"] += delta["function"]["arguments"]
