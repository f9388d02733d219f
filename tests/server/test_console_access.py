"""The console: who may read, who may change, and from where."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from foredraft.errors import ModelFormatError
from foredraft.server.auth import hash_key, new_key
from foredraft.server.settings import KeySettings, ServerSettings
from http_server import Running, serving

ALICE, ADMIN = new_key(), new_key()
LOCKED = ServerSettings(
    keys=(KeySettings(name="alice", hash=hash_key(ALICE)),), admin_key_hash=hash_key(ADMIN)
)


@pytest.fixture(scope="module")
def locked() -> Iterator[Running]:
    with serving(settings=LOCKED) as running:
        yield running


def test_only_the_admin_reads_paths_in_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(**_: object) -> None:
        raise ModelFormatError("/srv/hidden/m.gguf is truncated.")

    with serving(settings=LOCKED) as running:
        monkeypatch.setattr("http_server.writing_model", refuse)
        httpx.post(f"{running.url}/v1/models/fake/unload", headers={"x-api-key": ADMIN}, timeout=30)
        body = {"model": "fake", "messages": [{"role": "user", "content": "x"}]}
        for key, told in (
            (ALICE, "Model fake: m.gguf is truncated."),
            (ADMIN, "Model fake: /srv/hidden/m.gguf is truncated."),
        ):
            for api in ("chat/completions", "messages"):
                given = body | ({"max_tokens": 1} if api == "messages" else {})
                url = f"{running.url}/v1/{api}"
                refused = httpx.post(url, json=given, headers={"x-api-key": key}, timeout=30)
                assert (refused.status_code, refused.json()["error"]["message"]) == (400, told)
            seen = httpx.get(f"{running.url}/console/models", headers={"x-api-key": key}, timeout=30).json()
            assert seen["configured"][0]["error"] == told
        rows = httpx.get(f"{running.url}/console/requests", headers={"x-api-key": ALICE}, timeout=30)
        assert "/srv" not in rows.text
        assert "m.gguf is truncated." in rows.text


def session(running: Running, **headers: str) -> httpx.Response:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return httpx.get(f"{running.url}/console/session", headers=named, timeout=30)


def test_without_keys_everybody_on_this_machine_is_the_admin(server: Running) -> None:
    found = session(server).json()
    assert (found["caller"], found["admin"], found["open"]) == ("local", True, True)


def test_a_key_reads_and_only_the_admin_key_changes(locked: Running) -> None:
    assert session(locked).status_code == 401
    assert session(locked, x_api_key=ALICE).json()["admin"] is False
    assert session(locked, x_api_key=ADMIN).json()["admin"] is True


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "https://elsewhere.example"},
        {"origin": "null"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
    ],
)
def test_pages_of_other_origins_are_refused(server: Running, headers: dict[str, str]) -> None:
    refused = httpx.get(f"{server.url}/console/session", headers=headers, timeout=30)
    assert refused.status_code == 403
    assert "other origins" in refused.json()["error"]["message"]


def test_the_own_page_is_answered(server: Running) -> None:
    own = {"origin": server.url, "sec-fetch-site": "same-origin"}
    assert httpx.get(f"{server.url}/console/session", headers=own, timeout=30).status_code == 200
