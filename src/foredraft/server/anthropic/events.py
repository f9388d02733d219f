"""The events of a message, from the engine's events; and the whole message as a fold over them."""

from __future__ import annotations

import secrets
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any

from foredraft.server import report
from foredraft.server.anthropic.blocks import BlockFolder, BlockWriter
from foredraft.server.anthropic.stops import StopFinder
from foredraft.server.generation import choices
from foredraft.server.openai.tool_use import ToolUse
from foredraft.server.pool import Lease
from foredraft.server.usage import anthropic_usage
from foredraft.server.worker import Job
from foredraft.types import FinishEvent, FinishReason, TokenEvent, Usage

Event = dict[str, Any]


async def message_events(
    lease: Lease, job: Job, use: ToolUse, *, omitted: bool = False
) -> AsyncGenerator[Sequence[Event], None]:
    """Anthropic's events of one message, in groups that are available at the same time. `omitted`: without
    the text of its thought.

    The first one comes after prefill, so that earlier errors are raised before anything was sent.
    """
    finder = StopFinder(lease.model.tokenizer, job.params.stop)
    writer = BlockWriter(use.reader(), omitted=omitted)
    begun = False
    async with aclosing(choices(lease.model, [job])) as answer:
        async for [(_, events)] in answer:
            written = [] if begun else [_message_start(lease.name, len(job.prompt))]
            begun = True
            written += writer.write(events)
            for event in events:
                if isinstance(event, TokenEvent):
                    finder.feed(event)
                else:
                    ended = _stop(event, finder.found(), job.params.max_tokens, called=writer.called)
                    written += _end(event, ended)
            yield written


def _end(end: FinishEvent, ended: Event) -> list[Event]:
    message_delta = {"type": "message_delta", "delta": ended, "usage": anthropic_usage(end.usage)}
    return [message_delta | report.extras([end]), {"type": "message_stop"}]


def _message_start(model: str, prompt_tokens: int) -> Event:
    """The first event. The number of cached tokens is only known at the end; that usage replaces this one."""
    message: Event = {
        "id": f"msg_{secrets.token_hex(12)}",
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": anthropic_usage(Usage(prompt_tokens, 0, 0, 0, 0)),
    }
    return {"type": "message_start", "message": message}


def _stop(end: FinishEvent, stop: str | None, max_tokens: int | None, *, called: bool) -> Event:
    """The event with the reason why the message ended."""
    if end.reason.cut:
        used_up = end.usage.completion_tokens == max_tokens or end.reason is not FinishReason.LENGTH
        reason, stop = "max_tokens" if used_up else "model_context_window_exceeded", None
    elif stop is not None:
        reason = "stop_sequence"
    else:
        reason = "tool_use" if called else "end_turn"
    return {"stop_reason": reason, "stop_sequence": stop}


async def fold_message(answer: AsyncGenerator[Sequence[Event], None]) -> dict[str, Any]:
    """Fold a stream of events into the whole message. Raises BackendError for an unreadable call."""
    message: dict[str, Any] = {}
    folder = BlockFolder()
    async with aclosing(answer):
        async for events in answer:
            for event in events:
                match event["type"]:
                    case "message_start":
                        message = event["message"]
                    case "message_delta":
                        end = {key: value for key, value in event.items() if key not in ("type", "delta")}
                        message |= event["delta"] | end
                    case _:
                        folder.add(event)
    return message | {"content": folder.blocks}
