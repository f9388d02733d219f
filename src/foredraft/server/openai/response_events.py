"""The events of one answer in OpenAI's Responses API, in order and numbered.

The response is created and in progress; each item is added, written and done, messages and calls in the order
in which the model wrote them; then the response is completed or incomplete, or failed at any point. The last
event contains the whole answer. Nothing here waits.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from foredraft.protocols import Tokenizer
from foredraft.server import report
from foredraft.server.openai.logprobs import chat_logprobs
from foredraft.server.openai.response_items import (
    AnyItem,
    CallItem,
    CustomCallItem,
    Item,
    MessageItem,
    Part,
    ReasoningItem,
)
from foredraft.server.openai.response_schemas import ENCRYPTED, ResponseRequest
from foredraft.server.openai.response_tools import HOSTED
from foredraft.server.openai.tool_use import ToolUse
from foredraft.server.tools.answer import deltas
from foredraft.server.tools.choice import Tool
from foredraft.server.tools.deltas import ArgumentsDelta, CallEnd, CallStart, Delta, ReasoningDelta, TextDelta
from foredraft.server.usage import response_usage
from foredraft.types import Event as EngineEvent
from foredraft.types import FinishEvent, SamplingParams

Event = dict[str, Any]

FAILED = "response.failed"


class ResponseWriter:
    """Writes the events of the answer to `body` by the model `model`, sampled with `params`.

    Call `write` with the engine's events, or `fail` if the answer breaks off.
    """

    def __init__(
        self, body: ResponseRequest, model: str, params: SamplingParams, use: ToolUse, tokenizer: Tokenizer
    ) -> None:
        self._frame = _frame(body, model, params, use)
        self._tokenizer = tokenizer
        self._reader = use.reader()
        self._summarised = body.reasoning is not None and body.reasoning.summarised
        self._encrypted = ENCRYPTED in (body.include or ())
        self._offered = body.offered
        self._events = 0
        self._output: list[Item] = []  # finished items
        self._open: AnyItem | None = None
        self._unplaced: list[Item] = []  # log-probabilities of tokens whose text is held back
        self._after_call = False

    def write(self, events: Sequence[EngineEvent]) -> Iterator[Event]:
        """OpenAI's events for some of the engine's events."""
        if not self._events:
            yield from self._begin()
        if self._reader is None:
            text, logprobs = "".join(event.text for event in events), self._logprobs(events)
            if text or logprobs:
                yield from self._text(text, logprobs)
        else:
            for event in events:
                yield from self._read(deltas(self._reader, [event]), self._logprobs([event]))
        if isinstance(events[-1], FinishEvent):
            yield from self._finish(events[-1])

    def _logprobs(self, events: Sequence[EngineEvent]) -> list[Item]:
        found = chat_logprobs(self._tokenizer, events)
        return found["content"] if found else []

    def _begin(self) -> Iterator[Event]:
        running = self._response("in_progress", output=[])
        yield self._event("response.created", response=running)
        yield self._event("response.in_progress", response=running)
        if self._reader is None:
            yield from self._begin_item(MessageItem())

    # --- items -------------------------------------------------------------------------------------------

    def _read(self, found: Iterable[Delta], logprobs: list[Item]) -> Iterator[Event]:
        """The events for new deltas. Log-probabilities belong to text: calls cannot have any.

        Text that may become a call is held back, together with its tokens' log-probabilities. After a call, a
        token whose text is held back cannot be assigned for certain; it is counted as part of the call.
        """
        self._unplaced += logprobs
        for delta in found:
            match delta:
                case TextDelta(text):
                    placed, self._unplaced, self._after_call = self._unplaced, [], False
                    yield from self._text(text, placed)
                case ReasoningDelta(text):
                    self._unplaced = []
                    yield from self._reasoning(text)
                case CallStart(_, call_id, name):
                    self._after_call = True
                    yield from self._begin_item(self._call(call_id, name))
                case ArgumentsDelta(_, json_text) if isinstance(self._open, CallItem | CustomCallItem):
                    for part in self._open.add(json_text):
                        yield self._placed(part)
                case CallEnd() if isinstance(self._open, CallItem | CustomCallItem):
                    self._open.whole = True
        if self._after_call:
            self._unplaced = []

    def _call(self, call_id: str, shown: str) -> CallItem | CustomCallItem:
        names = self._offered.names(shown)
        if self._offered.is_custom(shown):
            return CustomCallItem(call_id, names)
        return CallItem(call_id, names)

    def _text(self, text: str, logprobs: list[Item]) -> Iterator[Event]:
        message = self._open
        if not isinstance(message, MessageItem):
            message = MessageItem()
            yield from self._begin_item(message)
        yield self._placed(message.add(text, logprobs))

    def _reasoning(self, text: str) -> Iterator[Event]:
        thought = self._open
        if not isinstance(thought, ReasoningItem):
            thought = ReasoningItem(self._summarised, self._encrypted)
            yield from self._begin_item(thought)
        yield self._placed(thought.add(text))

    def _begin_item(self, item: AnyItem) -> Iterator[Event]:
        yield from self._end_item(cut=False)
        self._open = item
        for part in item.opening():
            yield self._placed(part)

    def _end_item(self, *, cut: bool) -> Iterator[Event]:
        if self._open is None:
            return
        for part in self._open.closing(cut=cut):
            yield self._placed(part)
        self._output.append(self._open.item(cut=cut))
        self._open = None

    # --- the end -----------------------------------------------------------------------------------------

    def _finish(self, end: FinishEvent) -> Iterator[Event]:
        """The events after the last of the text, which has already been sent."""
        cut = end.reason.cut
        if self._open is None or (not cut and isinstance(self._open, ReasoningItem)):
            # An answer always has an item, and one that ends with its own end has more than a thought.
            yield from self._begin_item(MessageItem())
        yield from self._end_item(cut=cut)
        status = "incomplete" if cut else "completed"
        whole = self._response(
            status,
            output=self._output,
            incomplete_details={"reason": "max_output_tokens"} if cut else None,
            completed_at=None if cut else int(time.time()),
            usage=response_usage(end.usage),
            **report.extras([end]),
        )
        yield self._event(f"response.{status}", response=whole)

    def fail(self, status: int, message: str) -> Event:
        """The last event of an answer that broke off, with its output so far; `status` is the error's HTTP
        status.
        """
        error = {"code": _error_code(status), "message": message}
        output = self._output if self._open is None else [*self._output, self._open.item(cut=True)]
        return self._event(FAILED, response=self._response("failed", output=output, error=error))

    # --- events ------------------------------------------------------------------------------------------

    def _placed(self, part: Part) -> Event:
        kind, values = part
        return self._event(kind, output_index=len(self._output), **values)

    def _event(self, kind: str, **values: Any) -> Event:
        number = self._events
        self._events += 1
        return {"type": kind, "sequence_number": number, **values}

    def _response(self, status: str, **changes: Any) -> dict[str, Any]:
        return {**self._frame, "status": status, **changes}


def _frame(body: ResponseRequest, model: str, params: SamplingParams, use: ToolUse) -> dict[str, Any]:
    """The response object before there is any output: the request's settings, as understood."""
    return {
        "id": f"resp_{secrets.token_hex(16)}",
        "object": "response",
        "created_at": int(time.time()),
        "completed_at": None,
        "status": "in_progress",
        "error": None,
        "incomplete_details": None,
        "model": model,
        "output": [],
        "usage": None,
        "instructions": body.instructions,
        "max_output_tokens": body.max_output_tokens,
        "max_tool_calls": body.max_tool_calls,
        "metadata": body.metadata or {},
        "temperature": params.temperature,
        "top_p": params.top_p,
        "top_logprobs": body.top_logprobs or 0,
        "text": _text_config(body),
        "reasoning": {
            "effort": body.reasoning.effort if body.reasoning else None,
            "summary": (body.reasoning.summary or body.reasoning.generate_summary)
            if body.reasoning
            else None,
        },
        "tools": _tools(body, use),
        "tool_choice": body.tool_choice or "auto",
        "parallel_tool_calls": body.parallel_tool_calls is not False,
        "truncation": "disabled",
        "service_tier": "default",
        "store": False,
        "background": False,
        "previous_response_id": None,
        "user": body.user,
        "safety_identifier": body.safety_identifier,
        "prompt_cache_key": body.prompt_cache_key,
    }


def _text_config(body: ResponseRequest) -> dict[str, Any]:
    wanted = body.text.format if body.text else None
    form = wanted.model_dump(by_alias=True, exclude_unset=True) if wanted else {"type": "text"}
    return {"format": form, "verbosity": "medium"}


def _tools(body: ResponseRequest, use: ToolUse) -> list[dict[str, Any]]:
    """The tools that are offered: functions as understood, others as they were sent."""
    understood = {tool.name: _tool(tool) for tool in use.tools}
    offered = [tool for tool in body.all_tools or () if tool["type"] not in HOSTED]
    return [understood[tool["name"]] if tool["type"] == "function" else tool for tool in offered]


def _tool(tool: Tool) -> dict[str, Any]:
    """A function in the form of the Responses API."""
    described = {"description": tool.description} if tool.description else {}
    return {
        "type": "function",
        "name": tool.name,
        **described,
        "parameters": dict(tool.parameters),
        "strict": tool.strict,
    }


def _error_code(status: int) -> str:
    """The closest of the few error codes that OpenAI's clients know for a failed response."""
    if status == 429:
        return "rate_limit_exceeded"
    return "invalid_prompt" if status < 500 else "server_error"
