"""`foredraft serve --open`."""

from __future__ import annotations

import threading
import webbrowser
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from foredraft.cli import run_command
from foredraft.cli.browser import open_in_browser


class Browser:
    """Opens nothing; `opens` says whether that worked."""

    def __init__(self, opens: Callable[[], bool]) -> None:
        self.opens = opens
        self.urls: list[str] = []
        self.done = threading.Event()

    def open(self, url: str) -> bool:
        self.urls.append(url)
        try:
            return self.opens()
        finally:
            self.done.set()


def lines_of(monkeypatch: pytest.MonkeyPatch, get: Callable[[], Any]) -> list[str]:
    monkeypatch.setattr(webbrowser, "get", get)
    said, heard = list[str](), threading.Event()

    def say(line: str) -> None:
        said.append(line)
        heard.set()

    open_in_browser("http://127.0.0.1:1/", say)
    heard.wait(10)
    return said


def test_without_a_browser_one_line_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> Any:
        raise webbrowser.Error("could not locate runnable browser")

    assert lines_of(monkeypatch, none) == [
        "There is no browser to open here: open http://127.0.0.1:1/ yourself."
    ]


def test_a_browser_that_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(lines_of(monkeypatch, lambda: Browser(lambda: False))) == 1


@pytest.mark.parametrize(
    ("model", "url", "opened"),
    [
        ("tiny", "http://0.0.0.0:8080", "http://127.0.0.1:8080/"),
        ("tiny", "http://[::]:8080", "http://[::1]:8080/"),
        (None, "http://127.0.0.1:9", "http://127.0.0.1:9/#/models"),
    ],
)
def test_the_page_opens_once_the_server_listens_and_holds_up_nothing(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    model: str | None,
    url: str,
    opened: str,
) -> None:
    closed = threading.Event()
    browser = Browser(lambda: closed.wait(20))  # as one in a terminal: until it is closed
    monkeypatch.setattr(webbrowser, "get", lambda: browser)
    monkeypatch.chdir(tmp_path)

    def run(*_: object, listening: Callable[[str | None, str], None], **__: object) -> None:
        assert not browser.urls
        listening(model, url)

    monkeypatch.setattr("foredraft.server.run.run_server", run)
    assert run_command(["serve", "--open"]) == 0
    closed.set()
    assert browser.done.wait(10)
    assert browser.urls == [opened]
    said = capsys.readouterr().err
    assert f"Page: {opened}" in said
    assert ("no model yet" in said) is (model is None)
