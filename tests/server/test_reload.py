"""A settings file that is edited while the server runs."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import httpx
import pytest

from foredraft.errors import ConfigError
from foredraft.server import app
from foredraft.server.auth import hash_key, new_key
from foredraft.server.settings import KeySettings, Limits, ModelSettings, ServerSettings
from http_server import Running, serving

KEY = new_key()


class Edits:
    """What `reload` finds: each edit once."""

    def __init__(self) -> None:
        self.next: ServerSettings | ConfigError | None = None

    def __call__(self) -> ServerSettings | ConfigError | None:
        found, self.next = self.next, None
        return found


@pytest.fixture
def edits(monkeypatch: pytest.MonkeyPatch) -> Edits:
    monkeypatch.setattr(app, "SWEEP_S", 0.02)
    return Edits()


@pytest.fixture
def running(edits: Edits) -> Iterator[Running]:
    with serving("fake", reload=edits) as made:
        yield made


def ask(running: Running, key: str = "", **options: Any) -> httpx.Response:
    body = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 5, **options}
    headers = {"x-api-key": key} if key else {}
    return httpx.post(f"{running.url}/v1/chat/completions", json=body, headers=headers, timeout=30)


def eventually(what: Any) -> None:
    deadline = time.monotonic() + 10
    while not what():
        assert time.monotonic() < deadline, "the edit was not taken up"
        time.sleep(0.02)


def settings(**changes: Any) -> ServerSettings:
    models = {"fake": ModelSettings(path="fake", speculate="suffix;ngram-simple:n=3,m=8")}
    return replace(ServerSettings(models=models), **changes)


def test_keys_and_limits_take_effect(running: Running, edits: Edits) -> None:
    assert ask(running).status_code == 200
    edits.next = settings(
        keys=(KeySettings(name="alice", hash=hash_key(KEY)),), limits=Limits(max_completion_tokens=4)
    )
    eventually(lambda: ask(running).status_code == 401)
    assert ask(running, KEY).status_code == 400
    assert ask(running, KEY, max_tokens=4).status_code == 200


def test_models_come_and_go(running: Running, edits: Edits) -> None:
    assert ask(running, model="fake").status_code == 200
    new = {"new": ModelSettings(path="new", speculate="off")}
    edits.next = settings(models=new, any_model_name=False)
    eventually(lambda: ask(running, model="fake").status_code == 404)
    assert ask(running, model="new").status_code == 200
    eventually(lambda: httpx.get(f"{running.url}/health").json()["models"] == {"new": True})


def test_a_model_with_other_speculation_is_loaded_anew(running: Running, edits: Edits) -> None:
    assert ask(running).status_code == 200
    first = running.engines["fake"]
    edits.next = settings(models={"fake": ModelSettings(path="fake", speculate="off")})
    eventually(lambda: running.engines["fake"] is not first)  # without a request
    assert ask(running).status_code == 200


def test_a_file_that_is_wrong_changes_nothing(
    running: Running, edits: Edits, caplog: pytest.LogCaptureFixture
) -> None:
    edits.next = ConfigError("the file is wrong")
    eventually(lambda: "the file is wrong" in caplog.text)
    assert ask(running).status_code == 200
