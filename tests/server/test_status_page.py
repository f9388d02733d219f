"""GET /: the page is the same for everybody, fetches nothing else, and its script asks only what there is."""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Iterator
from hashlib import sha256
from html.parser import HTMLParser

import httpx
import pytest

from foredraft.server.auth import hash_key, new_key
from foredraft.server.page.status import status_page
from foredraft.server.settings import KeySettings, ServerSettings
from http_server import Running, serving
from openapi_cases import document

ALICE = new_key()
KEYS = ServerSettings(keys=(KeySettings(name="alice-of-sales", hash=hash_key(ALICE)),))
INJECTION = "<script>alert(1)</script>"
MARKUP = ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "srcdoc", "setHTML")
CODE = ("eval(", "new Function", "import(", "DOMParser", "createContextualFragment", "Worker(")


class Page(HTMLParser):
    """What there is in a page: the texts of its scripts and styles, and every element's attributes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.scripts: list[str] = []
        self.styles: list[str] = []
        self.attributes: list[tuple[str, str, str | None]] = []
        self._into: list[str] | None = None
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.attributes += [(tag, name, value) for name, value in attrs]
        self._into = {"script": self.scripts, "style": self.styles}.get(tag)
        if self._into is not None:
            self._into.append("")

    def handle_data(self, data: str) -> None:
        if self._into is not None:
            self._into[-1] += data

    def handle_endtag(self, tag: str) -> None:
        self._into = None


@pytest.fixture(scope="module")
def html() -> str:
    return status_page()[0]


@pytest.fixture(scope="module")
def page(html: str) -> Page:
    return Page(html)


@pytest.fixture(scope="module")
def guarded() -> Iterator[Running]:
    with serving(INJECTION, settings=KEYS) as running:
        yield running


def paths_asked(page: Page) -> set[str]:
    """The paths that the script asks, as it writes them."""
    return set(re.findall(r'\bawait get\("([^"]+)"\)', page.scripts[0]))


def test_it_is_served_with_and_without_a_key(guarded: Running, html: str) -> None:
    for headers in ({}, {"x-api-key": ALICE}, {"x-api-key": "ft-wrong"}):
        reply = httpx.get(guarded.url, headers=headers)
        assert reply.status_code == 200
        assert reply.headers["Content-Type"] == "text/html; charset=utf-8"
        assert reply.text == html
    head = httpx.head(guarded.url)
    assert (head.status_code, head.text) == (200, "")
    assert head.headers["Content-Security-Policy"]
    assert httpx.post(guarded.url, json={}).status_code == 405


def test_what_it_shows_is_behind_the_key(guarded: Running, page: Page) -> None:
    paths = paths_asked(page)
    assert paths
    for path in paths:
        url = f"{guarded.url}/{path}"
        assert httpx.get(url).status_code == 401
        assert httpx.get(url, headers={"Authorization": "Bearer ft-wrong"}).status_code == 401
        assert httpx.get(url, headers={"Authorization": f"Bearer {ALICE}"}).status_code == 200


def test_it_holds_nothing_of_the_server_s(guarded: Running) -> None:
    """Nor a model's name as markup: there are no names in it, and its script sets texts as texts."""
    text = httpx.get(guarded.url).text
    listed = httpx.get(f"{guarded.url}/v1/models", headers={"x-api-key": ALICE})
    assert listed.json()["data"][0]["id"] == INJECTION
    assert listed.headers["Content-Type"] == "application/json"
    for secret in (INJECTION, "alert(1)", ALICE, "alice-of-sales", hash_key(ALICE)):
        assert secret not in text


@pytest.mark.parametrize("way", [*MARKUP, *CODE])
def test_the_script_makes_no_markup_and_no_code_of_texts(page: Page, way: str) -> None:
    assert way not in page.scripts[0]


def test_another_name_for_this_computer_is_refused() -> None:
    with serving() as running:
        assert httpx.get(running.url, headers={"host": "evil.example"}).status_code == 403


def test_the_policy_allows_what_is_in_the_page_and_nothing_else(page: Page) -> None:
    _, headers = status_page()
    policy = dict(part.split(" ", 1) for part in headers["Content-Security-Policy"].split("; "))
    assert policy["default-src"] == "'none'"
    assert policy["connect-src"] == "'self'"
    for kind, texts in (("script-src", page.scripts), ("style-src", page.styles)):
        [text] = texts
        digest = b64encode(sha256(text.encode()).digest()).decode()
        assert policy[kind] == f"'sha256-{digest}'"
    for closed in ("base-uri", "form-action", "frame-ancestors"):
        assert policy[closed] == "'none'"
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Referrer-Policy"] == "no-referrer"
    for tag, name, value in page.attributes:
        assert name != "style", "the policy forbids it"
        assert not name.startswith("on"), "the policy forbids it"
        assert name not in ("src", "action"), (tag, value)
        assert name != "href" or str(value).startswith("data:image/svg+xml,"), (tag, value)


def test_nothing_is_fetched_from_elsewhere(html: str) -> None:
    addresses = set(re.findall(r"""(?:https?:)?//[a-z][^\s"'<>)]*""", html))
    assert addresses == {"http://www.w3.org/2000/svg"}, "the name of SVG's elements, which nobody fetches"
    assert "url(" not in html
    assert "@import" not in html


def test_the_script_asks_only_what_there_is(page: Page) -> None:
    known = set(document()["paths"])
    assert {f"/{path}" for path in paths_asked(page)} == {"/v1/models", "/v1/speculation"} <= known
    assert page.scripts[0].count("fetch(") == 1


def test_it_is_for_people_and_in_no_api() -> None:
    assert "/" not in document()["paths"]


def test_the_key_is_kept_in_the_tab_only(page: Page) -> None:
    assert "sessionStorage" in page.scripts[0]
    for elsewhere in ("localStorage", "indexedDB", "document.cookie", "location.", "history."):
        assert elsewhere not in page.scripts[0]
    [kind] = [value for tag, name, value in page.attributes if (tag, name) == ("input", "type")]
    assert kind == "password"


def test_without_metrics_it_is_there_too() -> None:
    with serving(settings=ServerSettings(metrics=False)) as running:
        assert httpx.get(running.url).status_code == 200
        assert httpx.get(f"{running.url}/metrics").status_code == 404
