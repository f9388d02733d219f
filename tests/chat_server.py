"""A small OpenAI-compatible server on this machine: it streams what a test tells it to."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Event = Mapping[str, Any] | str

TOO_LONG = "exceed_context_size_error"


def piece(text: str, field: str = "content") -> dict[str, Any]:
    """An event with a piece of the answer."""
    return {"choices": [{"index": 0, "delta": {field: text}}]}


class ChatServer:
    """What the server answers, and what it was asked. `url` has no /v1.

    `events` are streamed as they are, texts unchanged, and [DONE] after them. With `status` other than 200,
    `refusal` is the whole answer to everything. A body longer than `longest` is refused as llama.cpp does it.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self.models: Sequence[str] = ("small",)
        self.owner = "somebody"
        self.events: Sequence[Event] = (piece("Hello"),)
        self.status = 200
        self.longest: int | None = None
        self.refusal = ""
        self.paths: list[str] = []
        self.bodies: list[dict[str, Any]] = []
        self.keys: list[str | None] = []


class _Handler(BaseHTTPRequestHandler):
    chat: ChatServer

    def do_GET(self) -> None:
        self._answer(
            json.dumps({"data": [{"id": name, "owned_by": self.chat.owner} for name in self.chat.models]})
        )

    def do_POST(self) -> None:
        length = int(self.headers["Content-Length"])
        self.chat.paths.append(self.path)
        self.chat.bodies.append(json.loads(self.rfile.read(length)))
        if self.chat.longest is not None and length > self.chat.longest:
            self._send(400, json.dumps({"error": {"code": 400, "message": "...", "type": TOO_LONG}}))
            return
        events = [event if isinstance(event, str) else json.dumps(event) for event in self.chat.events]
        self._answer("".join(f"data: {event}\n\n" for event in [*events, "[DONE]"]))

    def _answer(self, text: str) -> None:
        self.chat.keys.append(self.headers.get("Authorization"))
        self._send(self.chat.status, self.chat.refusal if self.chat.status != 200 else text)

    def _send(self, status: int, text: str) -> None:
        content = text.encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Silent."""


@contextmanager
def chat_server() -> Iterator[ChatServer]:
    """A running server, stopped at the end."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    chat = ChatServer(f"http://127.0.0.1:{server.server_address[1]}")
    server.RequestHandlerClass = type("Handler", (_Handler,), {"chat": chat})
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield chat
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
