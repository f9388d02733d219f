"""The items of an answer in OpenAI's Responses API, and their events, not numbered yet."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from foredraft.server.openai.response_tools import read_text
from foredraft.server.sealed import sealed

Item = dict[str, Any]
Part: TypeAlias = tuple[str, dict[str, Any]]
"""(an event's type, its values except its position)"""


@dataclass(slots=True)
class MessageItem:
    """A message with one text part."""

    id: str = field(default_factory=lambda: f"msg_{secrets.token_hex(16)}")
    text: str = ""
    logprobs: list[Item] = field(default_factory=list)

    def opening(self) -> Iterator[Part]:
        """The events that add the empty message and its part."""
        yield "response.output_item.added", {"item": self._item("in_progress", [])}
        yield "response.content_part.added", {**self._place(), "part": self._part()}

    def add(self, text: str, logprobs: list[Item]) -> Part:
        """The event for more text, with its tokens' log-probabilities if requested."""
        self.text += text
        self.logprobs += logprobs
        return "response.output_text.delta", {**self._place(), "delta": text, "logprobs": logprobs}

    def closing(self, *, cut: bool) -> Iterator[Part]:
        """The events that finish text, part and item."""
        text = {"text": self.text, "logprobs": self.logprobs}
        yield "response.output_text.done", {**self._place(), **text}
        yield "response.content_part.done", {**self._place(), "part": self._part()}
        yield "response.output_item.done", {"item": self.item(cut=cut)}

    def item(self, *, cut: bool) -> Item:
        """The complete item; `cut`: the answer ended within it."""
        return self._item("incomplete" if cut else "completed", [self._part()])

    def _place(self) -> dict[str, Any]:
        return {"item_id": self.id, "content_index": 0}

    def _part(self) -> Item:
        return {"type": "output_text", "text": self.text, "annotations": [], "logprobs": list(self.logprobs)}

    def _item(self, status: str, content: list[Item]) -> Item:
        return {
            "id": self.id,
            "type": "message",
            "role": "assistant",
            "status": status,
            "content": content,
        }


@dataclass(slots=True)
class ReasoningItem:
    """What the model thinks before it answers: the item's summary if that was asked for, else its content;
    also `encrypted`, if that was asked for.
    """

    summarised: bool
    encrypted: bool = False
    text: str = ""
    id: str = field(default_factory=lambda: f"rs_{secrets.token_hex(16)}")

    def opening(self) -> Iterator[Part]:
        """The events that add the empty item and its part."""
        yield "response.output_item.added", {"item": self._item("in_progress", [])}
        yield f"response.{self._kind}_part.added", {**self._place(), "part": self._part("")}

    def add(self, text: str) -> Part:
        """The event for more of the thought."""
        self.text += text
        return f"response.{self._name}.delta", {**self._place(), "delta": text}

    def closing(self, *, cut: bool) -> Iterator[Part]:
        """The events that finish text, part and item."""
        yield f"response.{self._name}.done", {**self._place(), "text": self.text}
        yield f"response.{self._kind}_part.done", {**self._place(), "part": self._part(self.text)}
        yield "response.output_item.done", {"item": self.item(cut=cut)}

    def item(self, *, cut: bool) -> Item:
        """The complete item; `cut`: the answer ended within it."""
        return self._item("incomplete" if cut else "completed", [self._part(self.text)])

    @property
    def _kind(self) -> str:
        return "reasoning_summary" if self.summarised else "content"

    @property
    def _name(self) -> str:
        return "reasoning_summary_text" if self.summarised else "reasoning_text"

    def _place(self) -> dict[str, Any]:
        return {"item_id": self.id, "summary_index" if self.summarised else "content_index": 0}

    def _part(self, text: str) -> Item:
        return {"type": "summary_text" if self.summarised else "reasoning_text", "text": text}

    def _item(self, status: str, parts: list[Item]) -> Item:
        held: Item = {"summary": parts} if self.summarised else {"summary": [], "content": parts}
        if self.encrypted:
            held["encrypted_content"] = sealed(self.text)
        return {"id": self.id, "type": "reasoning", "status": status, **held}


@dataclass(slots=True)
class CallItem:
    """A function call. `names`: its `name`, and its `namespace` if it has one. `whole`: its arguments are
    complete.
    """

    call_id: str
    names: dict[str, str]
    arguments: str = ""
    whole: bool = False
    id: str = field(default_factory=lambda: f"fc_{secrets.token_hex(16)}")

    def opening(self) -> Iterator[Part]:
        """The events that add the call, without arguments."""
        yield "response.output_item.added", {"item": self._item("in_progress")}

    def add(self, json_text: str) -> Iterator[Part]:
        """The event for more of the arguments."""
        self.arguments += json_text
        yield "response.function_call_arguments.delta", {"item_id": self.id, "delta": json_text}

    def closing(self, *, cut: bool) -> Iterator[Part]:
        """The events that finish arguments and item."""
        done = {"item_id": self.id, **self.names, "arguments": self.arguments}
        yield "response.function_call_arguments.done", done
        yield "response.output_item.done", {"item": self.item(cut=cut)}

    def item(self, *, cut: bool) -> Item:  # noqa: ARG002 - a complete call stays complete if the answer ends there
        """The item in its present state."""
        return self._item("completed" if self.whole else "incomplete")

    def _item(self, status: str) -> Item:
        return {
            "id": self.id,
            "type": "function_call",
            "call_id": self.call_id,
            **self.names,
            "arguments": self.arguments,
            "status": status,
        }


@dataclass(slots=True)
class CustomCallItem:
    """A call of a custom tool, whose input is the one argument of the function that the model called."""

    call_id: str
    names: dict[str, str]
    json_text: str = ""
    input: str = ""
    whole: bool = False
    id: str = field(default_factory=lambda: f"ctc_{secrets.token_hex(16)}")

    def opening(self) -> Iterator[Part]:
        """The events that add the call, without input."""
        yield "response.output_item.added", {"item": self._item("in_progress")}

    def add(self, json_text: str) -> Iterator[Part]:
        """The event for more of the input, if there is more."""
        self.json_text += json_text
        if more := read_text(self.json_text)[len(self.input) :]:
            self.input += more
            yield "response.custom_tool_call_input.delta", {"item_id": self.id, "delta": more}

    def closing(self, *, cut: bool) -> Iterator[Part]:
        """The events that finish input and item."""
        yield "response.custom_tool_call_input.done", {"item_id": self.id, "input": self.input}
        yield "response.output_item.done", {"item": self.item(cut=cut)}

    def item(self, *, cut: bool) -> Item:  # noqa: ARG002 - as in CallItem
        """The item in its present state."""
        return self._item("completed" if self.whole else "incomplete")

    def _item(self, status: str) -> Item:
        return {
            "id": self.id,
            "type": "custom_tool_call",
            "call_id": self.call_id,
            **self.names,
            "input": self.input,
            "status": status,
        }


AnyItem: TypeAlias = MessageItem | ReasoningItem | CallItem | CustomCallItem
