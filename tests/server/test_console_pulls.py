"""The console pulls models from a stand-in for the Hub, and deletes them."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

import gguf_factory
from event_streams import following
from foredraft.config import OtherPrograms
from foredraft.server.auth import hash_key, new_key
from foredraft.server.console.library import Library
from foredraft.server.console.parts import Parts
from foredraft.server.settings import KeySettings, ServerSettings
from foredraft.server.settings_file import read_settings
from http_server import Running, serving
from hub_server import Hub, isolated_hub

MODEL = "owner/Tiny-GGUF"


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Hub]:
    with isolated_hub(monkeypatch, tmp_path) as found:
        file = tmp_path / "made.gguf"
        gguf_factory.tiny_llama(file)
        found.repositories[MODEL] = {"Tiny-Q4_0.gguf": file.read_bytes(), "Tiny-Q8_0.gguf": b"x" * 3000}
        found.repositories["owner/Other-GGUF"] = {"Other-Q4_0.gguf": b"y" * 5000}
        found.downloads_of[MODEL] = 7
        yield found
        found.go_on.set()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "foredraft.toml"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "models"


@pytest.fixture
def server(hub: Hub, file: Path, tmp_path: Path) -> Iterator[Running]:
    parts = Parts(settings_file=file, library=Library(OtherPrograms()), hub=hub.endpoint)
    with serving("fake", settings=ServerSettings(cache_dir=tmp_path / "cache"), console=parts) as running:
        yield running


def call(server: Running, method: str, path: str, **options: Any) -> httpx.Response:
    return httpx.request(method, f"{server.url}/console/{path}", timeout=30, **options)


def start(server: Running, model: str = MODEL, *, serve: bool = False) -> dict[str, Any]:
    reply = call(server, "POST", "pulls", json={"model": model, "serve": serve})
    assert reply.status_code == 200, reply.text
    found: dict[str, Any] = reply.json()
    return found


def pulls(server: Running) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = call(server, "GET", "pulls").json()["pulls"]
    return found


def until(server: Running, number: str, **wanted: Any) -> dict[str, Any]:
    """The download, once it has these values."""
    deadline = time.monotonic() + 20
    while True:
        found = next(one for one in pulls(server) if one["id"] == number)
        if all(found[name] == value for name, value in wanted.items()):
            return found
        assert time.monotonic() < deadline, found
        time.sleep(0.02)


def test_what_the_hub_has(server: Running) -> None:
    found = call(server, "GET", "hub?query=tiny").json()["models"]
    assert [(one["repository"], one["downloads"]) for one in found] == [(MODEL, 7)]
    assert [one["name"] for one in found[0]["variants"]] == ["Q4_0", "Q8_0"]
    assert call(server, "GET", "hub?query=nothing").json() == {"models": []}
    for wrong in (
        "hub",
        "hub?query=",
        "hub?query=a&limit=0",
        "hub?query=a&limit=1000",
        f"hub?query={'x' * 300}",
    ):
        assert call(server, "GET", wrong).status_code == 400


def test_a_hub_that_does_not_answer(server: Running, hub: Hub) -> None:
    hub.listing = b"<html>Log in to the wireless network</html>"
    refused = call(server, "GET", "hub?query=tiny")
    assert (refused.status_code, refused.json()["error"]["code"]) == (502, "hub_error")
    assert "does not answer as the Hub does" in refused.json()["error"]["message"]


def test_a_hub_that_hangs_holds_up_nothing(
    hub: Hub, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.hang_on = "/api/models"
    parts = Parts(settings_file=file, library=Library(OtherPrograms()), hub=hub.endpoint)
    settings = ServerSettings(cache_dir=tmp_path / "cache")
    with ThreadPoolExecutor(40) as threads, serving("fake", settings=settings, console=parts) as server:
        searches = [threads.submit(call, server, "GET", "hub?query=tiny") for _ in range(40)]
        while len(hub.requests) < 2:
            time.sleep(0.02)
        assert call(server, "GET", "models").status_code == 200
        assert not any(search.done() for search in searches), "it did not wait for one"
        assert len(hub.requests) == 2
        asking = [thread for thread in threading.enumerate() if thread.name == "foredraft-search"]
        assert [thread.daemon for thread in asking] == [True, True], "the process does not wait for them"
        monkeypatch.setattr("foredraft.server.console.hub_search.WAIT_S", 0.2)
        late = call(server, "GET", "hub?query=tiny")
        assert (late.status_code, late.json()["error"]["code"]) == (502, "hub_error")
        assert "has not answered" in late.json()["error"]["message"]
        assert {search.result().status_code for search in searches} == {502}
        assert len(hub.requests) == 2, "those that gave up waiting do not ask"
        hub.go_on.set()
        monkeypatch.setattr("foredraft.server.console.hub_search.WAIT_S", 10)
        assert call(server, "GET", "hub?query=tiny").json()["models"]


def test_a_model_is_pulled_and_served(server: Running, file: Path, folder: Path) -> None:
    number = start(server, serve=True)["id"]
    done = until(server, number, state="done")
    assert done["served_as"] == "Tiny-Q4_0"
    assert done["done_bytes"] == done["total_bytes"] == (folder / MODEL / "Tiny-Q4_0.gguf").stat().st_size
    assert read_settings(file).models["Tiny-Q4_0"].path == f"{MODEL}:Q4_0"
    models = call(server, "GET", "models").json()
    assert [one["name"] for one in models["configured"]] == ["fake", "Tiny-Q4_0"]
    [stored] = [one for one in models["stored"] if not one["packaged"]]
    assert (stored["name"], stored["served_as"], stored["removable"]) == (
        f"{MODEL}:Q4_0",
        ["Tiny-Q4_0"],
        False,
    )
    again = start(server, serve=True)["id"]
    assert until(server, again, state="done")["served_as"] == "Tiny-Q4_0"
    assert len(read_settings(file).models) == 1
    assert [one["id"] for one in pulls(server)] == [again]
    assert call(server, "DELETE", f"pulls/{again}").status_code == 200
    assert pulls(server) == []


def test_an_address_of_the_hub_is_a_name(server: Running, file: Path) -> None:
    number = start(server, f"https://huggingface.co/{MODEL}")["id"]
    assert until(server, number, state="done")["served_as"] is None
    assert not file.exists()


def test_a_pull_is_cancelled_and_continued(server: Running, hub: Hub, folder: Path) -> None:
    hub.hold_after = 1000
    number = start(server)["id"]
    held = until(server, number, done_bytes=1000)
    assert (held["state"], held["file"]) == ("running", "Tiny-Q4_0.gguf")
    twice = call(server, "POST", "pulls", json={"model": MODEL.lower()})
    assert (twice.status_code, twice.json()["error"]["param"]) == (400, "model")
    assert call(server, "POST", f"pulls/{number}/cancel").json()["state"] == "cancelled"
    hub.hold_after = None
    assert call(server, "POST", f"pulls/{number}/resume").json()["state"] == "running"
    hub.go_on.set()
    until(server, number, state="done")
    first, second = hub.downloads
    assert first[1] is None
    assert second[1] is not None, "the part that was there is not downloaded again"
    assert second[1].startswith("bytes=")
    assert not [path for path in (folder / MODEL).iterdir() if path.suffix == ".part"]


def test_a_cancelled_pull_leaves_its_part(server: Running, hub: Hub, folder: Path) -> None:
    hub.hold_after = 1000
    number = start(server)["id"]
    until(server, number, done_bytes=1000)
    assert call(server, "DELETE", f"pulls/{number}").status_code == 409, "it runs"
    for _ in range(2):
        assert call(server, "POST", f"pulls/{number}/cancel").json()["state"] == "cancelled"
    hub.go_on.set()
    time.sleep(0.3)
    assert until(server, number, state="cancelled")["path"] is None
    assert [path.suffix for path in (folder / MODEL).iterdir() if path.name.endswith("part")] == [".part"]
    assert not (folder / MODEL / "Tiny-Q4_0.gguf").exists()
    call(server, "DELETE", f"pulls/{number}").raise_for_status()
    assert pulls(server) == []
    assert call(server, "DELETE", f"pulls/{number}").status_code == 404
    assert call(server, "POST", f"pulls/{number}/resume").status_code == 404


def test_a_cancelled_pull_that_stalls_makes_room(server: Running, hub: Hub) -> None:
    """The Hub sends nothing more: the place, the file's lock and the thread are free all the same."""
    hub.hold_after = 100
    stalled = [start(server, model)["id"] for model in (MODEL, "owner/Other-GGUF")]
    for number in stalled:
        until(server, number, done_bytes=100)
        assert call(server, "POST", f"pulls/{number}/cancel").json()["state"] == "cancelled"
    hub.hold_after = None
    again = [start(server, model)["id"] for model in (f"{MODEL}:Q4_0", "owner/Other-GGUF")]
    for number in again:
        assert until(server, number, state="done")["error"] is None
    assert not hub.go_on.is_set()


def test_pulls_of_one_repository_do_not_collide(server: Running, hub: Hub) -> None:
    hub.hold_after = 100
    first = start(server)["id"]
    until(server, first, done_bytes=100)
    second = start(server, f"{MODEL}:q4_0")["id"]
    third = start(server, "owner/Other-GGUF")["id"]
    until(server, third, done_bytes=100)
    assert until(server, second, state="running")["total_bytes"] is None
    hub.go_on.set()
    for number in (first, second, third):
        assert until(server, number, state="done")["error"] is None
    assert len(hub.downloads) == 2, "what the first has downloaded is there"


def test_pulls_that_are_cancelled_and_continued_again_and_again_leave_no_threads(
    server: Running, hub: Hub
) -> None:
    hub.hang_on = f"/api/models/{MODEL}"
    number = start(server)["id"]
    while not hub.requests:
        time.sleep(0.01)
    for _ in range(30):
        call(server, "POST", f"pulls/{number}/cancel")
        call(server, "POST", f"pulls/{number}/resume")
    deadline = time.monotonic() + 20
    while sum(thread.name == "foredraft-pull" for thread in threading.enumerate()) > 2:
        assert time.monotonic() < deadline, "one that waits for the Hub, and one for that"
        time.sleep(0.02)
    hub.go_on.set()
    until(server, number, state="done")


def test_a_pull_that_fails_says_why_and_can_be_continued(server: Running, hub: Hub) -> None:
    hub.drop_after = [1000, 0, 0, 0]
    number = start(server)["id"]
    failed = until(server, number, state="failed")
    assert "connection" in failed["error"].lower()
    assert failed["done_bytes"] >= 1000
    call(server, "POST", f"pulls/{number}/resume").raise_for_status()
    assert until(server, number, state="done")["error"] is None


def test_two_at_once(server: Running, hub: Hub) -> None:
    hub.repositories["owner/Third-GGUF"] = {"Third-Q4_0.gguf": b"z" * 4000}
    hub.hold_after = 100
    numbers = [start(server, model)["id"] for model in (MODEL, "owner/Other-GGUF", "owner/Third-GGUF")]
    for number in numbers[:2]:
        until(server, number, done_bytes=100)
    assert until(server, numbers[2], state="running")["total_bytes"] is None
    call(server, "POST", f"pulls/{numbers[0]}/cancel")
    hub.go_on.set()
    for number in numbers[1:]:
        until(server, number, state="done")


def test_a_server_that_stops_does_not_wait_for_pulls(hub: Hub, file: Path, tmp_path: Path) -> None:
    hub.hold_after = 100
    parts = Parts(settings_file=file, library=Library(OtherPrograms()), hub=hub.endpoint)
    with serving("fake", settings=ServerSettings(cache_dir=tmp_path / "cache"), console=parts) as running:
        until(running, start(running)["id"], done_bytes=100)
        began = time.monotonic()
    assert time.monotonic() - began < 10, "the Hub would wait for 20 seconds"


@pytest.mark.parametrize(
    "model",
    ["", "word", "../evil", "owner/..", "a/b/c", "owner/na\nme", "owner/name:../../x", "owner/missing"],
)
def test_what_cannot_be_pulled(server: Running, folder: Path, model: str) -> None:
    reply = call(server, "POST", "pulls", json={"model": model})
    if reply.status_code == 200:
        failed = until(server, reply.json()["id"], state="failed")
        assert failed["error"]
    else:
        assert (reply.status_code, reply.json()["error"]["param"]) == (400, "model")
    assert not folder.exists() or not list(folder.iterdir())


def test_pulls_can_be_followed(server: Running) -> None:
    with following(server.url, "pulls") as stream:
        assert next(stream)[1]["pulls"] == []
        start(server)
        assert next(stream)[1]["pulls"][0]["model"] == MODEL


# --- deleting ------------------------------------------------------------------------------------------


def test_a_model_is_deleted(server: Running, folder: Path) -> None:
    until(server, start(server)["id"], state="done")
    assert call(server, "DELETE", f"stored/{MODEL}:Q4_0").status_code == 204
    assert list(folder.iterdir()) == []
    assert call(server, "DELETE", f"stored/{MODEL}:Q4_0").status_code == 404


def test_a_model_that_is_used_is_not_deleted(server: Running, folder: Path) -> None:
    until(server, start(server, serve=True)["id"], state="done")
    refused = call(server, "DELETE", f"stored/{MODEL}:Q4_0")
    assert refused.status_code == 400
    assert "used by the model 'Tiny-Q4_0'" in refused.json()["error"]["message"]
    version = call(server, "GET", "models/fake/settings").json()["version"]
    call(server, "DELETE", f"models/Tiny-Q4_0?version={version}").raise_for_status()
    version = call(server, "GET", "models/fake/settings").json()["version"]
    body = {"version": version, "values": {"speculate": "auto", "draft_model": f"{MODEL}:Q4_0"}}
    call(server, "PUT", "models/fake/settings", json=body).raise_for_status()
    drafts = call(server, "DELETE", f"stored/{MODEL}:Q4_0")
    assert "for which it drafts" in drafts.json()["error"]["message"]
    assert (folder / MODEL / "Tiny-Q4_0.gguf").exists()


def test_a_vision_file_comes_and_goes_with_its_model(server: Running, hub: Hub, folder: Path) -> None:
    hub.repositories["owner/Eyes-GGUF"] = {"Eyes-Q4_0.gguf": b"m" * 3000, "mmproj-F16.gguf": b"e" * 2000}
    pulled = until(server, start(server, "owner/Eyes-GGUF")["id"], state="done")
    assert pulled["total_bytes"] == 5000
    mmproj = folder / "owner/Eyes-GGUF/mmproj-F16.gguf"
    assert mmproj.read_bytes() == b"e" * 2000
    version = call(server, "GET", "models/fake/settings").json()["version"]
    body = {"version": version, "values": {"mmproj": str(mmproj)}}
    call(server, "PUT", "models/fake/settings", json=body).raise_for_status()
    refused = call(server, "DELETE", "stored/owner/Eyes-GGUF:Q4_0").json()["error"]["message"]
    assert "used by the model 'fake', which sees with its mmproj-F16.gguf" in refused
    version = call(server, "GET", "models/fake/settings").json()["version"]
    body = {"version": version, "values": {"mmproj": None}}
    call(server, "PUT", "models/fake/settings", json=body).raise_for_status()
    assert call(server, "DELETE", "stored/owner/Eyes-GGUF:Q4_0").status_code == 204
    assert not mmproj.exists()


@pytest.mark.parametrize(
    "name", ["none", "../../../etc/passwd", "..%2f..%2fetc%2fpasswd", "/etc/passwd", "%00", "."]
)
def test_nothing_else_is_deleted(server: Running, name: str, tmp_path: Path) -> None:
    beside = tmp_path / "made.gguf"
    for each in (name, str(beside)):
        assert call(server, "DELETE", f"stored/{each}").status_code in (400, 404)
    assert beside.exists()


def test_models_of_packages_are_not_deleted(server: Running) -> None:
    bundled = [one for one in call(server, "GET", "models").json()["stored"] if one["packaged"]]
    for one in bundled:
        refused = call(server, "DELETE", f"stored/{one['name']}")
        assert refused.status_code == 400
        assert Path(one["path"]).exists()


def test_only_the_admin_pulls_and_deletes(hub: Hub, file: Path) -> None:
    alice = new_key()
    settings = ServerSettings(
        keys=(KeySettings(name="alice", hash=hash_key(alice)),), admin_key_hash=hash_key(new_key())
    )
    with serving("fake", settings=settings, console=Parts(settings_file=file, hub=hub.endpoint)) as server:
        reader = {"x-api-key": alice}
        for method, path, body in (
            ("POST", "pulls", {"model": MODEL}),
            ("GET", "pulls", None),
            ("POST", "pulls/1/cancel", {}),
            ("DELETE", "pulls/1", None),
            ("POST", "pulls/1/resume", None),
            ("DELETE", "stored/x", None),
            ("GET", "hub?query=x", None),
        ):
            assert call(server, method, path, json=body, headers=reader).status_code == 403
    assert not hub.requests
