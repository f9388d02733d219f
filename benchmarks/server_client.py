"""A client that streams answers, chat or plain text, and keeps the time: what its user would see."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import httpx

from server_common import gauges

READ_SECONDS = 600.0


@dataclass(slots=True)
class Answer:
    """A streamed answer as its client saw it. Times are `perf_counter` seconds.

    `arrivals`: when a piece of text came, and how many characters there were then. `tokens`: what `usage`
    says, 0 until the end. `left`: the client closed the connection on purpose.
    """

    sent: float
    text: str = ""
    tokens: int = 0
    arrivals: list[tuple[float, int]] = field(default_factory=list)
    error: str = ""
    left: bool = False

    @property
    def first_ms(self) -> float | None:
        """Time to the first token."""
        return 1e3 * (self.arrivals[0][0] - self.sent) if self.arrivals else None

    @property
    def gaps_ms(self) -> list[float]:
        """Times between pieces of text."""
        times = [when for when, _ in self.arrivals]
        return [1e3 * (after - before) for before, after in pairwise(times)]

    @property
    def decode_rate(self) -> float | None:
        """Tokens a second after the first piece of text; None for an answer too short to have a rate."""
        if len(self.arrivals) < 2 or self.tokens < 4:
            return None
        return (self.tokens - 1) / (self.arrivals[-1][0] - self.arrivals[0][0])

    def tokens_until(self, when: float) -> float:
        """How many of the tokens had come by then, counted by the characters that had."""
        seen = max((count for at, count in self.arrivals if at <= when), default=0)
        return self.tokens * seen / len(self.text) if self.text else 0.0


def chat_body(
    prompt: str, tokens: int, *, temperature: float = 0.0, seed: int | None = None
) -> dict[str, Any]:
    """A request for a streamed answer to one message."""
    return _body({"messages": [{"role": "user", "content": prompt}]}, tokens, temperature, seed)


def completion_body(prompt: str, tokens: int) -> dict[str, Any]:
    """A request for how a text goes on, streamed and greedy: for a model without a chat template."""
    return _body({"prompt": prompt}, tokens, 0.0, None)


def _body(asked: Mapping[str, Any], tokens: int, temperature: float, seed: int | None) -> dict[str, Any]:
    body: dict[str, Any] = {
        **asked,
        "temperature": temperature,
        "max_tokens": tokens,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    return body if seed is None else {**body, "seed": seed}


def new_client(url: str) -> httpx.AsyncClient:
    """A client with as many connections as are asked for."""
    timeout = httpx.Timeout(READ_SECONDS, connect=10.0)
    return httpx.AsyncClient(base_url=url, timeout=timeout, limits=httpx.Limits(max_connections=None))


async def stream_answer(
    client: httpx.AsyncClient, body: Mapping[str, Any], *, leave_after: int | None = None
) -> Answer:
    """One streamed answer; a body with a `prompt` goes to /v1/completions, others to the chat. With
    `leave_after` the client goes away once that many pieces have come.

    What goes wrong is told in the answer's `error`. It reads from the socket itself: a client library takes
    as much of the processor for a token as the server does, and both share it with the model.
    """
    answer = Answer(time.perf_counter())
    host, port = client.base_url.host, client.base_url.port
    writer = None
    try:
        async with asyncio.timeout(READ_SECONDS):
            reader, writer = await asyncio.open_connection(host, port, limit=1 << 24)
            writer.write(_request(host, body))
            await _read(reader, answer, leave_after)
    except (OSError, EOFError, ValueError) as error:
        answer.error = f"{type(error).__name__}: {error}"
    finally:
        if writer is not None:
            writer.close()
    if not answer.error and not answer.tokens and not answer.left:
        answer.error = "the stream ended without usage"
    return answer


def _request(host: str, body: Mapping[str, Any]) -> bytes:
    content = json.dumps(body).encode()
    path = "/v1/completions" if "prompt" in body else "/v1/chat/completions"
    head = (
        f"POST {path} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(content)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + content


async def _read(reader: asyncio.StreamReader, answer: Answer, leave_after: int | None) -> None:
    """Read an answer to its end. Raises what reading raises."""
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    status = int(head.split(b" ", 2)[1])
    if status != 200:
        answer.error = f"{status}: {(await reader.read(300)).decode(errors='replace')}"
        return
    rest = b""
    async for piece in _pieces(reader, chunked=b"transfer-encoding: chunked" in head):
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            if line.startswith(b"data: {"):
                _take(answer, json.loads(line[6:]))
        if leave_after is not None and len(answer.arrivals) >= leave_after:
            answer.left = True
            return


async def _pieces(reader: asyncio.StreamReader, *, chunked: bool) -> AsyncIterator[bytes]:
    """The body as it comes: chunk by chunk, or line by line until the server closes the connection."""
    if not chunked:
        while line := await reader.readline():
            yield line
        return
    while size := int(await reader.readline(), 16):
        yield (await reader.readexactly(size + 2))[:-2]


def _take(answer: Answer, chunk: Mapping[str, Any]) -> None:
    if "error" in chunk:
        answer.error = str(chunk["error"])[:300]
        return
    piece = "".join(map(_text, chunk.get("choices") or ()))
    if piece:
        answer.text += piece
        answer.arrivals.append((time.perf_counter(), len(answer.text)))
    if chunk.get("usage"):
        answer.tokens = int(chunk["usage"]["completion_tokens"])


def _text(choice: Mapping[str, Any]) -> str:
    """What a piece adds to the answer: `delta` is that of a chat, `text` that of a completion."""
    return (choice["delta"].get("content") if "delta" in choice else choice.get("text")) or ""


async def left_over(client: httpx.AsyncClient, seconds: float = 10.0) -> dict[str, float]:
    """The gauges that are still not 0 after that long without a request; empty as soon as all are."""
    end = time.perf_counter() + seconds
    while True:
        found = gauges((await client.get("/metrics")).text)
        if not found or time.perf_counter() > end:
            return found
        await asyncio.sleep(0.1)
