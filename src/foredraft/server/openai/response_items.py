"""The items of an answer in OpenAI's Responses API, and their events, not numbered yet."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, TypeAlias

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
class CallItem:
    """A function call. `whole`: its arguments are complete."""

    call_id: str
    name: str
    arguments: str = ""
    whole: bool = False
    id: str = field(default_factory=lambda: f"fc_{secrets.token_hex(16)}")

    def opening(self) -> Iterator[Part]:
        """The events that add the call, without arguments."""
        yield "response.output_item.added", {"item": self._item("in_progress")}

    def add(self, json_text: str) -> Part:
        """The event for more of the arguments."""
        self.arguments += json_text
        return "response.function_call_arguments.delta", {"item_id": self.id, "delta": json_text}

    def closing(self, *, cut: bool) -> Iterator[Part]:
        """The events that finish arguments and item."""
        done = {"item_id": self.id, "name": self.name, "arguments": self.arguments}
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
            "name": self.name,
            "arguments": self.arguments,
            "status": status,
        }


AnyItem: TypeAlias = MessageItem | CallItem
