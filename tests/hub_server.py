"""A stand-in for the Hugging Face Hub on the loopback: the addresses that a pull and a search ask for.

`GET /api/models?search=…&filter=…` lists repositories, `GET /api/models/OWNER/NAME` describes one, and `GET
/OWNER/NAME/resolve/COMMIT/FILE` sends a file, from the middle on request (Range). It can drop the connection
after some bytes, refuse, or send damaged data.
"""

from __future__ import annotations

import hashlib
import json
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, unquote, urlsplit

import huggingface_hub

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import pytest

COMMIT = "0123456789abcdef0123456789abcdef01234567"
LARGE = 1000
"""Files of so many bytes are described as large ones are: with their sha256."""


@dataclass
class Hub:
    """The server's contents and conduct. `drop_after`: for each download to come, the bytes after which its
    connection ends; `hold_after`: the bytes after which a download waits for `go_on`; `hang_on`: the
    path that is not answered before `go_on`; `refuse_downloads`: the
    status for each of them, with the Hub's name of the error in `refuse_with`; `listing`: what a search gets
    in place of the truth; `requests`: method, path and Range header of every request so far.
    """

    endpoint: str = ""
    repositories: dict[str, dict[str, bytes]] = field(default_factory=dict)
    downloads_of: dict[str, int] = field(default_factory=dict)
    listing: bytes | None = None
    drop_after: list[int] = field(default_factory=list)
    hold_after: int | None = None
    hang_on: str = ""
    go_on: threading.Event = field(default_factory=threading.Event)
    refuse_downloads: int = 0
    refuse_with: str = ""
    damage: bool = False
    knows_ranges: bool = True
    requests: list[tuple[str, str | None]] = field(default_factory=list)

    @property
    def downloads(self) -> list[tuple[str, str | None]]:
        return [request for request in self.requests if "/resolve/" in request[0]]


@contextmanager
def running_hub() -> Iterator[Hub]:
    hub = Hub()

    class Handler(_Handler):
        contents = hub

    server = _Server(("127.0.0.1", 0), Handler)
    hub.endpoint = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextmanager
def isolated_hub(monkeypatch: pytest.MonkeyPatch, folder: Path) -> Iterator[Hub]:
    """A Hub for this test; nothing of the user's own settings for the real one is used."""
    monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", str(folder / "token"))
    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    huggingface_hub.close_session()
    with running_hub() as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.endpoint)
        yield hub
        huggingface_hub.close_session()


class _Server(ThreadingHTTPServer):
    def handle_error(self, request: object, client_address: object) -> None:
        """A client that goes away is part of the tests."""


class _Handler(BaseHTTPRequestHandler):
    contents: Hub

    def log_message(self, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path)
        self.contents.requests.append((path, self.headers.get("Range")))
        if path == self.contents.hang_on:
            self.contents.go_on.wait(20)
        if path == "/api/models":
            self._list(parse_qs(urlsplit(self.path).query))
        elif path.startswith("/api/models/"):
            self._describe(path.removeprefix("/api/models/"))
        else:
            repository, _, rest = path.lstrip("/").partition("/resolve/")
            commit, _, name = rest.partition("/")
            assert commit == COMMIT
            self._send_file(self.contents.repositories[repository][name])

    def _list(self, query: dict[str, list[str]]) -> None:
        """As the Hub does it: repositories whose names hold every word, with all of the tags."""
        assert query["sort"] == ["downloads"]
        words, ends = query["search"][0].lower().split(), {"gguf": ".gguf", "safetensors": ".safetensors"}
        wanted = [ends[tag] for tag in query["filter"] if tag in ends]
        found = [
            {"id": name, "downloads": self.contents.downloads_of.get(name, 0), "gated": "gated" in name}
            for name, files in self.contents.repositories.items()
            if all(word in name.lower() for word in words)
            and all(any(file.endswith(end) for file in files) for end in wanted)
        ]
        found.sort(key=lambda model: -int(str(model["downloads"])))
        body = json.dumps(found[: int(query["limit"][0])]).encode()
        self._reply(200, body if self.contents.listing is None else self.contents.listing)

    def _describe(self, repository: str) -> None:
        if repository == "owner/gated":
            self._reply(403, b"", {"X-Error-Code": "GatedRepo"})
        elif repository == "owner/not-a-hub":
            self._reply(200, b"<html>Log in to the wireless network</html>")
        elif repository not in self.contents.repositories:
            self._reply(404, b"{}", {"X-Error-Code": "RepoNotFound"})
        else:
            files = self.contents.repositories[repository]
            siblings = [_sibling(name, content) for name, content in files.items()]
            body = {"id": repository, "modelId": repository, "sha": COMMIT, "siblings": siblings}
            self._reply(200, json.dumps(body).encode())

    def _send_file(self, content: bytes) -> None:
        if self.contents.refuse_downloads:
            code = {"X-Error-Code": self.contents.refuse_with} if self.contents.refuse_with else {}
            self._reply(self.contents.refuse_downloads, b"", code)
            return
        if self.contents.damage:
            content = content[::-1]
        start, status = 0, 200
        requested = self.headers.get("Range")
        if requested and self.contents.knows_ranges:
            start, status = int(requested.removeprefix("bytes=").rstrip("-")), 206
        drop = self.contents.drop_after.pop(0) if self.contents.drop_after else len(content)
        self._reply(status, content[start:], send=drop)

    def _reply(
        self, status: int, body: bytes, headers: dict[str, str] | None = None, send: int | None = None
    ) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.end_headers()
        hold = self.contents.hold_after
        if hold is not None and "/resolve/" in self.path:
            self.wfile.write(body[:send][:hold])
            self.wfile.flush()
            self.contents.go_on.wait(20)
            body = body[:send][hold:]
        self.wfile.write(body[:send])


def _sibling(name: str, content: bytes) -> dict[str, Any]:
    blob = hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
    sibling: dict[str, Any] = {"rfilename": name, "size": len(content), "blobId": blob}
    if len(content) >= LARGE:
        sha = hashlib.sha256(content).hexdigest()
        sibling["lfs"] = {"size": len(content), "sha256": sha, "pointerSize": 134}
    return sibling
