"""The console's keys: made, limited and removed in the settings file, in effect at once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from foredraft.server.auth import hash_key, new_key
from foredraft.server.console.parts import Parts
from foredraft.server.settings import KeySettings, ServerSettings
from foredraft.server.settings_edit import add_key, set_admin_key
from foredraft.server.settings_file import read_settings
from foredraft.server.taking import LiveSettings
from http_server import Running, serving

ALICE, ADMIN = new_key(), new_key()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "foredraft.toml"


def live(file: Path) -> Parts:
    """As `foredraft serve` has it: the settings are those of the file."""
    return Parts(settings_file=file, live=LiveSettings(file, lambda settings: settings, must_exist=False))


@pytest.fixture
def locked(file: Path) -> Iterator[Running]:
    """A server with the key alice and an admin key."""
    file.write_text("# mine\n")
    add_key(file, KeySettings(name="alice", hash=hash_key(ALICE)), admin_key_hash=hash_key(ADMIN))
    with serving(settings=read_settings(file), console=live(file)) as running:
        yield running


def call(running: Running, method: str, path: str = "", key: str = ADMIN, **options: Any) -> httpx.Response:
    url = f"{running.url}/console/keys{path}"
    return httpx.request(method, url, headers={"x-api-key": key}, timeout=30, **options)


def names(running: Running, key: str = ADMIN) -> list[str]:
    return [row["name"] for row in call(running, "GET", key=key).json()["keys"]]


def accepts(running: Running, key: str) -> bool:
    reply = httpx.get(f"{running.url}/v1/models", headers={"x-api-key": key}, timeout=30)
    return reply.status_code == 200


def test_the_first_key_comes_with_an_admin_key_so_that_nobody_is_locked_out(file: Path) -> None:
    with serving(console=live(file)) as running:
        made = call(running, "POST", json={"name": "first"}, key="").json()
        assert made["admin_key"]
        assert made["key"] != made["admin_key"]
        assert call(running, "GET", key="").status_code == 401, "the server is closed now"
        assert call(running, "GET", key=made["key"]).status_code == 403
        assert names(running, made["admin_key"]) == ["first"]
        second = call(running, "POST", json={"name": "second"}, key=made["admin_key"]).json()
        assert second["admin_key"] is None
        assert accepts(running, second["key"])
    text = file.read_text()
    assert made["key"] not in text
    assert made["admin_key"] not in text
    assert file.stat().st_mode & 0o077 == 0


def test_a_key_is_made_limited_and_removed(locked: Running, file: Path) -> None:
    limits = {"requests_per_minute": 60, "max_concurrent": 2, "max_priority": 3, "scope": "team"}
    made = call(locked, "POST", json={"name": "bob", **limits}).json()
    assert accepts(locked, made["key"])
    row = call(locked, "GET").json()["keys"][1]
    assert {name: row[name] for name in limits} == limits
    changed = call(locked, "PUT", "/bob", json={"max_concurrent": 1}).json()["keys"][1]
    assert (changed["requests_per_minute"], changed["max_concurrent"]) == (None, 1)
    assert (changed["scope"], changed["max_priority"]) == ("bob", 0)
    assert read_settings(file).keys[1].max_concurrent == 1
    gone = call(locked, "DELETE", "/bob")
    assert [row["name"] for row in gone.json()["keys"]] == ["alice"]
    assert not accepts(locked, made["key"])
    assert "# mine\n" in file.read_text()


def test_the_last_key_stays(locked: Running, file: Path) -> None:
    before = file.read_text()
    refused = call(locked, "DELETE", "/alice")
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "last_key")
    assert "last key" in refused.json()["error"]["message"]
    assert file.read_text() == before
    assert accepts(locked, ALICE)
    assert not accepts(locked, "")


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"name": "a b"}, "name"),
        ({"name": "admin"}, "name"),
        ({"name": "alice"}, "name"),
        ({"name": "bob", "requests_per_minute": 0}, "requests_per_minute"),
        ({"name": "bob", "max_priority": 10**9}, "max_priority"),
        ({"name": "bob", "scope": "a\nb"}, "scope"),
        ({"name": "bob", "scope": "\0x"}, "scope"),
        ({"name": "bob", "max_concurrent": "2"}, "max_concurrent"),
        ({"name": "bob", "rate": 1}, "rate"),
        ({}, "name"),
    ],
)
def test_wrong_values_are_named_and_nothing_is_saved(
    locked: Running, file: Path, body: dict[str, Any], param: str
) -> None:
    before = file.read_text()
    refused = call(locked, "POST", json=body)
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == param
    assert "sha256" not in refused.text
    assert file.read_text() == before


def test_a_key_that_is_made_anew_under_a_name_is_somebody_else(file: Path) -> None:
    file.write_text('[models.fake]\npath = "fake"\n')
    add_key(file, KeySettings(name="alice", hash=hash_key(ALICE)), admin_key_hash=hash_key(ADMIN))
    with serving(settings=read_settings(file), console=live(file)) as running:
        _make_anew(running)


def _make_anew(locked: Running) -> None:
    def ask(key: str) -> None:
        body = {"prompt": "x", "max_tokens": 2}
        headers = {"x-api-key": key}
        httpx.post(f"{locked.url}/v1/completions", json=body, headers=headers, timeout=30).raise_for_status()

    def seen(key: str) -> int:
        found = httpx.get(f"{locked.url}/console/requests", headers={"x-api-key": key}, timeout=30).json()
        return len(found["finished"])

    def used() -> dict[str, int]:
        return {row["name"]: row["requests"] for row in call(locked, "GET").json()["keys"]}

    first = call(locked, "POST", json={"name": "bob"}).json()["key"]
    ask(first)
    assert (seen(first), seen(ALICE), used()) == (1, 0, {"alice": 0, "bob": 1})
    call(locked, "DELETE", "/bob").raise_for_status()
    second = call(locked, "POST", json={"name": "bob"}).json()["key"]
    assert (seen(second), used()) == (0, {"alice": 0, "bob": 0})
    ask(second)
    assert (seen(second), used()) == (1, {"alice": 0, "bob": 1})
    assert seen(ADMIN) == 2


def test_wrong_limits_are_named(locked: Running) -> None:
    refused = call(locked, "PUT", "/alice", json={"max_concurrent": 0})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "max_concurrent")
    assert call(locked, "PUT", "/nobody", json={}).status_code == 404
    assert call(locked, "DELETE", "/nobody").status_code == 404


def test_a_change_by_hand_is_not_overwritten(locked: Running, file: Path) -> None:
    version = call(locked, "GET").json()["version"]
    file.write_text(file.read_text() + "\n# by hand\n")
    for method, path, body in (
        ("POST", "", {"name": "bob", "version": version}),
        ("PUT", "/alice", {"version": version}),
    ):
        assert call(locked, method, path, json=body).status_code == 409
    call(locked, "POST", json={"name": "bob"})
    assert call(locked, "DELETE", f"/bob?version={version}").status_code == 409
    assert "# by hand" in file.read_text()


def test_an_admin_key_that_exists_is_kept(file: Path) -> None:
    set_admin_key(file, hash_key(ADMIN))
    with serving(settings=read_settings(file), console=live(file)) as running:
        assert call(running, "POST", json={"name": "x"}, key="").status_code == 403
        assert call(running, "POST", json={"name": "first"}).json()["admin_key"] is None
        assert names(running) == ["first"]


def test_keys_of_a_program_stay_beside_new_ones(tmp_path: Path) -> None:
    """A server that was given its settings, not a file."""
    settings = ServerSettings(
        keys=(KeySettings(name="alice", hash=hash_key(ALICE)),), admin_key_hash=hash_key(ADMIN)
    )
    with serving(settings=settings, console=Parts(settings_file=tmp_path / "new.toml")) as running:
        call(running, "POST", json={"name": "bob"})
        assert names(running) == ["alice", "bob"]
        assert accepts(running, ALICE)


def test_use_is_counted_by_key(locked: Running) -> None:
    body = {"prompt": "x", "max_tokens": 7}
    for _ in range(2):
        httpx.post(f"{locked.url}/v1/completions", json=body, headers={"x-api-key": ALICE}, timeout=30)
    httpx.post(f"{locked.url}/v1/completions", json=body, headers={"x-api-key": ADMIN}, timeout=30)
    for _ in range(200):
        [row] = call(locked, "GET").json()["keys"]
        if row["requests"] == 2:
            break
    assert (row["requests"], row["tokens"], row["running"]) == (2, 14, 0)
    assert row["last_used"] > 0
