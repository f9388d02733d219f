"""The events of one answer in OpenAI's Responses API, in their order and with their numbers.

One message with one text part: created, in_progress, the item and its part added, deltas, the text, part and
item done, and the response completed or incomplete, or failed at any time after it began. The last event
holds the whole answer. Nothing here waits for anything.
"""

from __future__ import annotations

import secrets
import time
from dataclasses import dataclass, field
from typing import Any

from foretoken.server import report
from foretoken.server.openai.response_schemas import ResponseRequest
from foretoken.types import FinishEvent, FinishReason, SamplingParams

Item = dict[str, Any]
Event = dict[str, Any]

FAILED = "response.failed"


@dataclass(slots=True)
class ResponseWriter:
    """Writes the events of the answer to `body` by the model `model`, sampled with `params`.

    `begin` once, `text` for every piece of text, `finish` at the end; `fail` instead of what is left.
    """

    body: ResponseRequest
    model: str
    params: SamplingParams
    _id: str = field(default_factory=lambda: f"resp_{secrets.token_hex(16)}")
    _item_id: str = field(default_factory=lambda: f"msg_{secrets.token_hex(16)}")
    _created: int = field(default_factory=lambda: int(time.time()))
    _events: int = 0
    _text: str = ""
    _logprobs: list[Item] = field(default_factory=list)

    @property
    def begun(self) -> bool:
        """Whether there has been an event."""
        return self._events > 0

    def begin(self) -> list[Event]:
        """The events before the text."""
        running = self._response("in_progress", output=[])
        return [
            self._event("response.created", response=running),
            self._event("response.in_progress", response=running),
            self._event("response.output_item.added", output_index=0, item=self._item("in_progress", [])),
            self._event("response.content_part.added", **self._place(), part=self._part("", [])),
        ]

    def text(self, delta: str, logprobs: list[Item]) -> Event:
        """A piece of text, with the log-probabilities of its tokens if they were asked for."""
        self._text += delta
        self._logprobs += logprobs
        return self._event("response.output_text.delta", **self._place(), delta=delta, logprobs=logprobs)

    def finish(self, end: FinishEvent) -> list[Event]:
        """The events after the text. The text that `end` still holds has gone out as a delta before."""
        cut = end.reason is FinishReason.LENGTH
        status = "incomplete" if cut else "completed"
        part = self._part(self._text, self._logprobs)
        item = self._item(status, [part])
        changes = {
            "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
            "completed_at": None if cut else int(time.time()),
            "usage": response_usage(end),
            **report.extras([end]),
        }
        done = {"text": self._text, "logprobs": self._logprobs}
        return [
            self._event("response.output_text.done", **self._place(), **done),
            self._event("response.content_part.done", **self._place(), part=part),
            self._event("response.output_item.done", output_index=0, item=item),
            self._event(f"response.{status}", response=self._response(status, output=[item], **changes)),
        ]

    def fail(self, status: int, message: str) -> Event:
        """The end of an answer that broke off, with the text it had; `status` is the HTTP status of why."""
        item = self._item("incomplete", [self._part(self._text, self._logprobs)])
        error = {"code": _error_code(status), "message": message}
        return self._event(FAILED, response=self._response("failed", output=[item], error=error))

    def _event(self, kind: str, **values: Any) -> Event:
        number = self._events
        self._events += 1
        return {"type": kind, "sequence_number": number, **values}

    def _place(self) -> dict[str, Any]:
        return {"item_id": self._item_id, "output_index": 0, "content_index": 0}

    def _item(self, status: str, content: list[Item]) -> Item:
        return {
            "id": self._item_id,
            "type": "message",
            "role": "assistant",
            "status": status,
            "content": content,
        }

    def _part(self, text: str, logprobs: list[Item]) -> Item:
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs}

    def _response(self, status: str, *, output: list[Item], **changes: Any) -> dict[str, Any]:
        """The response object: what was asked for, as it was understood, and what has come of it."""
        body, params = self.body, self.params
        return {
            "id": self._id,
            "object": "response",
            "created_at": self._created,
            "completed_at": None,
            "status": status,
            "error": None,
            "incomplete_details": None,
            "model": self.model,
            "output": output,
            "usage": None,
            "instructions": body.instructions,
            "max_output_tokens": body.max_output_tokens,
            "max_tool_calls": None,
            "metadata": body.metadata or {},
            "temperature": params.temperature,
            "top_p": params.top_p,
            "top_logprobs": body.top_logprobs or 0,
            "text": {"format": {"type": "text"}},
            "reasoning": {"effort": None, "summary": None},
            "tools": [],
            "tool_choice": body.tool_choice or "auto",
            "parallel_tool_calls": body.parallel_tool_calls is not False,
            "truncation": "disabled",
            "store": False,
            "background": False,
            "previous_response_id": None,
            "user": body.user,
            "safety_identifier": body.safety_identifier,
            **changes,
        }


def response_usage(end: FinishEvent) -> dict[str, Any]:
    """The Responses API's `usage`. `cache_write_tokens`: the input that had to be computed."""
    given = end.usage
    return {
        "input_tokens": given.prompt_tokens,
        "input_tokens_details": {
            "cached_tokens": given.cached_tokens,
            "cache_write_tokens": given.prompt_tokens - given.cached_tokens,
        },
        "output_tokens": given.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": given.prompt_tokens + given.completion_tokens,
    }


def _error_code(status: int) -> str:
    """The nearest of the few codes that OpenAI's clients know for a failed response."""
    if status == 429:
        return "rate_limit_exceeded"
    return "invalid_prompt" if status < 500 else "server_error"
