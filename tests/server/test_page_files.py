"""GET / and its files: what is served is what `page/` builds, and it asks this server only."""

from __future__ import annotations

import gzip
import importlib.util
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import httpx
import pytest

from foredraft.server.auth import hash_key, new_key
from foredraft.server.page.built import FILES
from foredraft.server.settings import KeySettings, ServerSettings
from http_server import Running, serving
from page_tools import PAGE, npm

ALICE = new_key()
KEYS = ServerSettings(keys=(KeySettings(name="alice-of-sales", hash=hash_key(ALICE)),))
MOST_BYTES = 300_000
NAMES_OF_FORMATS = {
    "http://www.w3.org/2000/svg",
    "http://www.w3.org/1999/xhtml",
    "http://www.w3.org/1998/Math/MathML",
}
"""Names of SVG's and other elements, which nobody fetches."""

IN_MESSAGES = {"https://github.com/markedjs/marked."}
"""Where a library's error messages ask for reports."""


@pytest.fixture(scope="module")
def guarded() -> Iterator[Running]:
    with serving("<script>alert(1)</script>", settings=KEYS) as running:
        yield running


def built(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def test_the_files_are_what_a_fresh_build_makes(tmp_path: Path) -> None:
    npm("run", "-s", "build", "--", "--outDir", str(tmp_path), "--emptyOutDir")
    shipped = PAGE.parent / "src/foredraft/server/page/app"
    fresh, kept = built(tmp_path), built(shipped)
    assert fresh.keys() == kept.keys()
    for name, content in fresh.items():
        assert content == kept[name], f"{name} is not of this source: run `npm run build` in page/"


def script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, PAGE.parent / "scripts" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_knows_the_bodies_of_the_console() -> None:
    kept = (PAGE / "src/api/bodies.json").read_text(encoding="utf-8")
    assert script("page_types").text() == kept, "run `python scripts/page_types.py`"
    assert npm("run", "-s", "types") == (PAGE / "src/api/schema.d.ts").read_text(encoding="utf-8")


def test_types_and_format_of_the_source() -> None:
    npm("run", "-s", "check")


@pytest.mark.parametrize("path", FILES)
def test_it_is_served_with_and_without_a_key(guarded: Running, path: str) -> None:
    for headers in ({}, {"x-api-key": ALICE}, {"x-api-key": "ft-wrong"}):
        reply = httpx.get(f"{guarded.url}{path}", headers=headers)
        assert reply.status_code == 200
        assert reply.content == FILES[path].plain
    plain = httpx.get(f"{guarded.url}{path}", headers={"accept-encoding": "identity"})
    assert "content-encoding" not in plain.headers
    assert plain.content == FILES[path].plain
    again = httpx.get(f"{guarded.url}{path}", headers={"if-none-match": plain.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")


def test_kinds_of_files(guarded: Running) -> None:
    kinds = {path.rpartition(".")[2]: httpx.get(guarded.url + path).headers["content-type"] for path in FILES}
    assert kinds["js"] == "text/javascript; charset=utf-8"
    assert kinds["css"] == "text/css; charset=utf-8"
    assert kinds["/"] == "text/html; charset=utf-8"
    assert kinds["svg"] == "image/svg+xml"


def test_it_is_small() -> None:
    assert sum(len(gzip.compress(file.plain)) for file in FILES.values()) <= MOST_BYTES


def test_a_file_that_is_not_there_needs_a_key(guarded: Running) -> None:
    assert httpx.get(f"{guarded.url}/page/../auth.py").status_code == 401
    assert httpx.get(f"{guarded.url}/page/none.js", headers={"x-api-key": ALICE}).status_code == 404


def test_the_policy_allows_this_server_only(guarded: Running) -> None:
    headers = httpx.get(guarded.url).headers
    policy = dict(part.split(" ", 1) for part in headers["content-security-policy"].split("; "))
    assert policy.pop("img-src") == "'self' data: blob:"
    assert {name for name, value in policy.items() if value == "'self'"} == {
        "script-src",
        "style-src",
        "connect-src",
    }
    for closed in ("default-src", "base-uri", "form-action", "frame-ancestors", "trusted-types"):
        assert policy[closed] == "'none'"
    assert policy["require-trusted-types-for"] == "'script'"
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"


@pytest.mark.parametrize("path", FILES)
def test_nothing_is_fetched_from_elsewhere(path: str) -> None:
    text = FILES[path].plain.decode()
    found = set(re.findall(r"""(?:https?:)?//[a-z][\w.-]*\.[a-z]{2,}[^\s"'`<>)]*""", text))
    assert found <= NAMES_OF_FORMATS | IN_MESSAGES
    assert "@import" not in text


@pytest.mark.parametrize(
    "way", ["nnerHTML", "outerHTML", "insertAdjacent", "document.write", "eval(", "DOMParser"]
)
def test_the_source_makes_no_markup_of_texts(way: str) -> None:
    """Trusted Types would refuse it in the browser."""
    sources = [file for file in (PAGE / "src").rglob("*") if file.suffix in (".ts", ".tsx")]
    assert sources
    assert [file.name for file in sources if way in file.read_text(encoding="utf-8")] == []


def test_another_name_for_this_computer_is_refused() -> None:
    with serving() as running:
        assert httpx.get(running.url, headers={"host": "evil.example"}).status_code == 403
