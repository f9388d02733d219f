"""A server whose model plays an agent: it says what a script tells it to say after what it was asked, with
calls in the form of its chat template, however long the prompts are that coding agents send.
"""

from __future__ import annotations

import json
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from claude_server import TemplateTokenizer
from foredraft import Engine
from foredraft.server.errors import CLIENT_CLOSED
from foredraft.testing import FakeModel, FakeVision
from foredraft.types import Logits, Rows
from http_server import END, Running, serving
from thinking_cases import QWEN

CUE = "<|im_start|>assistant\n"
UNTHOUGHT = b"<think>\n\n</think>\n\n"
"""What the prompt has of an answer that must not begin with a thought."""

CONTEXT = 1 << 20
"""Tokens are bytes here, and agents send more than 100,000 of them."""

LONGEST = 16_384
"""Bytes of the longest answer."""

SLOWLY = "Slowly: "
"""An answer that begins so is written a token in 20 ms, so that it can be cut."""

FEW = 20
"""Tokens of a slow answer after which it has begun."""

Reply = Callable[[str], str]
"""What the model says after a prompt."""


def call(name: str, **arguments: Any) -> str:
    """A call as the model writes it."""
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def thought(text: str) -> str:
    """What the model thinks, before it goes on."""
    return f"<think>\n{text}\n</think>\n\n"


def play(scripts: Mapping[str, Sequence[str]], *, otherwise: str = "Fine.") -> Reply:
    """Answers by script: under the words of a task stands what is said after it, one answer after the other,
    and `otherwise` when all is said, or where no task was set (agents also ask for titles and summaries).
    """

    def reply(prompt: str) -> str:
        found = [(prompt.rfind(task), task) for task in scripts if task in prompt]
        if not found:
            return otherwise
        place, task = max(found)
        said = prompt.count(CUE, place) - 1
        return scripts[task][said] if said < len(scripts[task]) else otherwise

    return reply


class AgentModel(FakeModel):
    """A model that says what `reply` makes of the prompt, in time linear in the prompt's length. Images
    change nothing of it.
    """

    def __init__(self, reply: Reply) -> None:
        super().__init__(258, context_length=CONTEXT, max_batch=8192, trees=False)
        self.tokenizer = TemplateTokenizer(QWEN)
        self._reply = reply
        self._answers: dict[tuple[int, int], bytes] = {}
        self.slow = 0
        """Tokens of slow answers that were written."""

    def _append(self, rows: Rows) -> list[Logits]:
        cached = self._cache.setdefault(rows.seq, [])
        first = len(rows.tokens) - rows.logits
        cached.extend(rows.tokens[:first])
        found = []
        for token in rows.tokens[first:]:
            cached.append(token)
            found.append(self._next(cached))
        return found

    def _next(self, text: Sequence[int]) -> Logits:
        tail = _bytes(text[-LONGEST:])
        before, _, said = tail.rpartition(CUE.encode())
        said = said.removeprefix(UNTHOUGHT)
        end = len(text) - len(said)
        known = (end, hash(before))
        if known not in self._answers:
            self._answers[known] = self._reply(_bytes(text[:end]).decode("utf-8", "replace")).encode()
        answer = self._answers[known]
        if answer.startswith(SLOWLY.encode()) and said:
            time.sleep(0.02)
            self.slow += 1
        row = np.zeros(258, np.float32)
        row[answer[len(said)] if len(said) < len(answer) and answer.startswith(said) else END] = 30.0
        return row


def _bytes(tokens: Sequence[int]) -> bytes:
    return bytes(token for token in tokens if token < END)


@dataclass(slots=True)
class Asked:
    """A request as it came, and the status of its answer."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes = b""
    status: int = 0
    answer: bytes = b""

    @property
    def json(self) -> Any:
        """The body."""
        return json.loads(self.body)


@dataclass(slots=True)
class AgentServer:
    """A server that plays an agent, and all that it was asked."""

    running: Running
    asked: list[Asked] = field(default_factory=list)
    read: list[str] = field(default_factory=list)
    """The prompts that the model has answered."""

    @property
    def url(self) -> str:
        """Its address, without a path."""
        return self.running.url

    @property
    def images(self) -> int:
        """Images that the models were shown."""
        visions = [engine.model.vision for engine in self.running.engines.values()]
        return sum(vision.prepared for vision in visions if isinstance(vision, FakeVision))

    def refused(self) -> list[tuple[str, str, int, bytes]]:
        """What was answered with an error. A client that left before its answer began got none."""
        refused = [one for one in self.asked if one.status >= 400 and one.status != CLIENT_CLOSED]
        return [(one.method, one.path, one.status, one.answer) for one in refused]

    def until_it_writes(self, seconds: float) -> None:
        """Wait until a slow answer has begun. Raises AssertionError."""
        _wait(lambda: any(_slow(engine) > FEW for engine in self.running.engines.values()), seconds)

    def until_idle(self, seconds: float = 10.0) -> None:
        """Wait until no request runs or waits any more. Raises AssertionError."""
        _wait(lambda: all(engine.idle for engine in self.running.engines.values()), seconds)


def _slow(engine: Engine) -> int:
    model = engine.model
    assert isinstance(model, AgentModel)
    return model.slow


def _wait(until: Callable[[], bool], seconds: float) -> None:
    end = time.monotonic() + seconds
    while not until():
        assert time.monotonic() < end, f"not within {seconds} s"
        time.sleep(0.05)


@contextmanager
def acting(reply: Reply, *names: str) -> Iterator[AgentServer]:
    """A server whose model says what `reply` makes of a prompt; it answers to any name of a model."""
    asked: list[Asked] = []
    read: list[str] = []

    def noted(prompt: str) -> str:
        read.append(prompt)
        return reply(prompt)

    def recorded(app: Any) -> Any:
        async def record(scope: Any, receive: Any, send: Any) -> None:
            if scope["type"] != "http":
                await app(scope, receive, send)
                return
            headers = {name.decode(): value.decode() for name, value in scope["headers"]}
            query = scope["query_string"].decode()
            one = Asked(scope["method"], scope["path"] + (f"?{query}" if query else ""), headers)
            asked.append(one)
            await app(scope, _hearing(one, receive), _saying(one, send))

        return record

    with serving(*names, model=lambda: AgentModel(noted), around=recorded, sees=True) as running:
        yield AgentServer(running, asked, read)


def _hearing(one: Asked, receive: Callable[[], Awaitable[Any]]) -> Callable[[], Awaitable[Any]]:
    async def hear() -> Any:
        message = await receive()
        one.body += message.get("body", b"")
        return message

    return hear


def _saying(one: Asked, send: Callable[[Any], Awaitable[None]]) -> Callable[[Any], Awaitable[None]]:
    async def say(message: Any) -> None:
        one.status = message.get("status", one.status)
        one.answer += message.get("body", b"")
        await send(message)

    return say
