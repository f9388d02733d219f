"""The page at /docs: everything it needs comes from this server."""

from __future__ import annotations

import asyncio
import gzip
import re
from base64 import b64encode
from hashlib import sha256

import httpx
import pytest

from foredraft.server.page.docs import ASSETS, SWAGGER_UI
from http_server import Running


def test_the_page_asks_nobody_else(server: Running) -> None:
    page = httpx.get(f"{server.url}/docs")
    assert page.status_code == 200
    assert page.headers["content-type"].startswith("text/html")
    asked = re.findall(r'(?:src|href|url)(?:=|: )"([^"]+)"', page.text)
    assert len(asked) >= 4
    assert all(address.startswith(("/", "data:,")) and "//" not in address for address in asked)
    assert "://" not in page.text
    for address in asked:
        if address.startswith("/"):
            assert httpx.get(f"{server.url}{address}").status_code == 200


def test_the_browser_may_run_nothing_else(server: Running) -> None:
    page = httpx.get(f"{server.url}/docs")
    policy = page.headers["content-security-policy"]
    rules = dict(rule.split(" ", 1) for rule in policy.split("; "))
    assert rules["default-src"] == "'none'"
    assert rules["connect-src"] == "'self'"
    assert "unsafe" not in policy
    assert not re.search(r"\bhttps?:|\*", policy)
    (script,) = re.findall(r"<script>(.+?)</script>", page.text, re.DOTALL)
    assert b64encode(sha256(script.encode()).digest()).decode() in rules["script-src"]


@pytest.mark.parametrize("name", ASSETS)
def test_the_files_are_those_of_swagger_ui(server: Running, name: str) -> None:
    replies = [
        httpx.get(f"{server.url}/docs/{name}", headers={"accept-encoding": coding})
        for coding in ("gzip", "identity")
    ]
    assert replies[0].headers["content-encoding"] == "gzip"
    assert "content-encoding" not in replies[1].headers
    assert replies[0].content == replies[1].content
    assert len(gzip.compress(replies[1].content)) < 600_000, "small enough to ship"
    assert "immutable" in replies[0].headers["cache-control"]
    text = replies[1].text
    assert "SwaggerUIBundle" in text if name.endswith(".js") else ".swagger-ui" in text
    assert f"?v={SWAGGER_UI}" in httpx.get(f"{server.url}/docs").text


def test_nobody_waits_while_a_file_is_unpacked(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """Anybody may ask for it so: it takes no key."""
    on_loop: list[bool] = []
    unpack = gzip.decompress

    def watched(packed: bytes) -> bytes:
        on_loop.append(asyncio._get_running_loop() is not None)
        return unpack(packed)

    monkeypatch.setattr("foredraft.server.page.docs.gzip.decompress", watched)
    name = "swagger-ui-bundle.js"
    assert httpx.get(f"{server.url}/docs/{name}", headers={"accept-encoding": "identity"}).status_code == 200
    assert on_loop == [False]
