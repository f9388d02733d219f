"""The console changes settings of models in the file, and what runs follows at once."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import httpx
import pytest

import http_server
from event_streams import following
from foredraft.errors import CapacityError
from foredraft.server.auth import hash_key, new_key
from foredraft.server.console.parts import Parts
from foredraft.server.settings import KeySettings, ModelSettings, SamplingDefaults, ServerSettings
from foredraft.server.settings_file import read_settings
from foredraft.server.taking import LiveSettings
from gguf_factory import not_gguf, tiny_llama, truncated, vocab_only
from http_server import Running, serving

ALICE, ADMIN = new_key(), new_key()
LOCKED = ServerSettings(
    keys=(KeySettings(name="alice", hash=hash_key(ALICE)),), admin_key_hash=hash_key(ADMIN)
)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "foredraft.toml"


@pytest.fixture
def server(file: Path, tmp_path: Path) -> Iterator[Running]:
    settings = ServerSettings(cache_dir=tmp_path / "cache", any_model_name=False)
    with serving("fake", settings=settings, console=Parts(settings_file=file)) as running:
        yield running


def call(server: Running, method: str, path: str, **options: Any) -> httpx.Response:
    return httpx.request(method, f"{server.url}/console/{path}", timeout=30, **options)


def settings_of(server: Running, name: str = "fake") -> dict[str, Any]:
    reply = call(server, "GET", f"models/{name}/settings")
    assert reply.status_code == 200, reply.text
    found: dict[str, Any] = reply.json()
    return found


def change(server: Running, version: str, model: str = "fake", **values: Any) -> httpx.Response:
    return call(server, "PUT", f"models/{model}/settings", json={"version": version, "values": values})


def states(server: Running) -> dict[str, dict[str, Any]]:
    return {model["name"]: model for model in call(server, "GET", "models").json()["configured"]}


# --- what is read --------------------------------------------------------------------------------------


IN_THE_FILE_ONLY = {"adapters", "replicas", "max_replicas"}
"""What a change leaves as it is: tables of the file, and what this server does not do itself."""


def test_settings_by_their_names(server: Running) -> None:
    found = settings_of(server)
    names = {field.name for field in fields(ModelSettings)} - IN_THE_FILE_ONLY
    assert set(found["values"]) == set(found["defaults"]) == names
    assert set(found["values"]["sampling"]) == {field.name for field in fields(SamplingDefaults)}
    assert (found["version"], found["in_file"]) == ("", False)
    assert found["changed"] == ["speculate"]
    assert found["choices"]["memory"] == ["mmap", "ram"]
    assert call(server, "GET", "models/none/settings").status_code == 404


def test_models_and_their_states(server: Running) -> None:
    before = states(server)["fake"]
    assert (before["state"], before["default"], before["in_file"]) == ("unloaded", True, False)
    httpx.post(f"{server.url}/v1/models/fake/load", timeout=30).raise_for_status()
    after = states(server)["fake"]
    assert (after["state"], after["exact"], after["running"]) == ("loaded", True, 0)
    assert after["context_length"] == 4096
    assert abs(after["last_used"] - time.time()) < 30
    assert states(server)["fake"] == after, "nothing is sent again while nothing changes"
    found = call(server, "GET", "models").json()
    assert found["used_bytes"] == after["size_bytes"]
    assert found["memory_bytes"] > 1 << 28


def test_why_a_model_cannot_be_loaded(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(**_: object) -> None:
        raise CapacityError("Not enough memory here.")

    monkeypatch.setattr("http_server.writing_model", refuse)
    assert httpx.post(f"{server.url}/v1/models/fake/load", timeout=30).status_code == 503
    found = states(server)["fake"]
    assert (found["state"], found["error"]) == ("failed", "Not enough memory here.")
    httpx.post(f"{server.url}/v1/models/fake/unload", timeout=30).raise_for_status()
    assert states(server)["fake"]["state"] == "unloaded"


def test_a_model_that_is_loading(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    going, made = threading.Event(), http_server.writing_model

    def slowly(**options: Any) -> Any:
        assert going.wait(20)
        return made(**options)

    monkeypatch.setattr("http_server.writing_model", slowly)
    with ThreadPoolExecutor(1) as threads:
        loading = threads.submit(httpx.post, f"{server.url}/v1/models/fake/load", timeout=30)
        try:
            deadline = time.monotonic() + 10
            while states(server)["fake"]["state"] != "loading":
                assert time.monotonic() < deadline
                time.sleep(0.02)
        finally:
            going.set()
        assert loading.result().status_code == 200
    assert states(server)["fake"]["state"] == "loaded"


# --- values --------------------------------------------------------------------------------------------

PACKAGED = "SmolLM2-135M-Instruct"
VALUES: dict[str, tuple[Any, list[Any]]] = {
    "path": (PACKAGED, [3, "", "a\0b", ["x"], "no such model", "none.gguf"]),
    "aliases": (["other", "gpt-4o"], ["other", [3], ["with space"], [None], ["twice", "twice"]]),
    "speculate": (
        f"draft-model:model={PACKAGED}",
        [3, "no-such-drafter", "", "auto;off", "draft-model:model=none", "auto;heads:model=none"],
    ),
    "draft_model": (PACKAGED, [3, "", "a\0b", ["x"], "no such model", "none.gguf"]),
    "mmproj": ("none", [3, "", "a\0b", ["x"]]),
    "context_length": (1024, [-1, 1.5, "8192", True, 2**31]),
    "sequences": (2, [0, -1, "4", 2.5]),
    "threads": (3, [-1, 100_000, "3", True, {"a": 1}, [None]]),
    "batch": (64, [0, "512"]),
    "ubatch": (64, [0, "512"]),
    "gpu_layers": (0, [-2, "all"]),
    "memory": ("ram", ["disk", 1, True]),
    "kv_type": ("q8_0/f16", [3, True, "q9", "f16/", ""]),
    "dtype": ("bf16", ["fp8", 16]),
    "rpc": (["10.0.0.2:50052"], ["10.0.0.2:50052", [3], ["10.0.0.2:99999"], ["a:0"], ["a", "a:50052"], [""]]),
    "rope_scaling": ("yarn", ["ntk", True, ""]),
    "rope_scale": (4.0, [-1, 0.5, "4", True, 1e308]),
    "rope_freq_base": (1e6, [-1, 0.5, "x", 1e300]),
    "yarn_orig_ctx": (2048, [-1, 1.5, "x"]),
    "embeddings": ("last", ["rank", True, ""]),
    "pinned": (True, [1, "yes"]),
    "sampling": ({"temperature": 0.5}, [3, "hot", ["temperature"], {"heat": 1}]),
}
SAMPLING: dict[str, tuple[Any, list[Any]]] = {
    "temperature": (0.25, [-1, "hot", True]),
    "top_k": (5, [-1, 2.5, "5"]),
    "top_p": (0.5, [1.5, -0.1, "x"]),
    "min_p": (0.1, [1.5, "x"]),
    "repetition_penalty": (1.1, [0, 101, "x"]),
    "presence_penalty": (0.5, [3, "x"]),
    "frequency_penalty": (-0.5, [-3, "x"]),
    "max_tokens": (100, [0, 1.5, "x"]),
    "reasoning_budget": (64, [-1, 1.5, "x"]),
}


def test_every_setting_is_tried() -> None:
    assert set(VALUES) == {field.name for field in fields(ModelSettings)} - IN_THE_FILE_ONLY
    assert set(SAMPLING) == {field.name for field in fields(SamplingDefaults)}


@pytest.mark.parametrize("name", VALUES)
def test_a_setting_is_saved_reset_and_refused(server: Running, file: Path, name: str) -> None:
    right, wrong = VALUES[name]
    default = settings_of(server)["defaults"][name]
    saved = change(server, "", **{name: right})
    assert saved.status_code == 200, saved.text
    expected = {**default, **right} if name == "sampling" else right
    assert saved.json()["values"][name] == expected
    stored = getattr(read_settings(file).models["fake"], name)
    assert (list(stored) if isinstance(stored, tuple) else stored) == (
        SamplingDefaults(**right) if name == "sampling" else right
    )
    before, version = file.read_bytes(), saved.json()["version"]
    for value in wrong:
        refused = change(server, version, **{name: value})
        assert refused.status_code == 400, (value, refused.text)
        assert refused.json()["error"]["param"] in (name, f"{name}.heat"), (value, refused.text)
        assert file.read_bytes() == before
    if name != "path":
        nothing: dict[str, Any] = {name: None}
        reset = change(server, version, **nothing)
        assert reset.json()["values"][name] == default
        assert name not in file.read_text()


@pytest.mark.parametrize("name", SAMPLING)
def test_a_sampling_value_is_saved_reset_and_refused(server: Running, file: Path, name: str) -> None:
    right, wrong = SAMPLING[name]
    saved = change(server, "", sampling={name: right})
    assert saved.json()["values"]["sampling"][name] == right
    assert f"sampling.{name}" in saved.json()["changed"]
    version = saved.json()["version"]
    for value in wrong:
        refused = change(server, version, sampling={name: value})
        assert refused.status_code == 400, (value, refused.text)
        assert refused.json()["error"]["param"] == f"sampling.{name}"
    reset = change(server, version, sampling={name: None})
    assert reset.json()["values"]["sampling"][name] is None
    assert "sampling" not in file.read_text()


def test_all_that_is_wrong_is_said_at_once_and_nothing_is_saved(server: Running, file: Path) -> None:
    wrong: dict[str, Any] = {
        "threads": -1,
        "speculate": "suffix:max=99",
        "sampling": {"top_p": 5, "top_k": -2, "min_p": 0.1},
    }
    refused = change(server, "", sequences=2, **wrong)
    error = refused.json()["error"]
    assert refused.status_code == 400
    assert {each["param"] for each in error["errors"]} == {
        "threads",
        "speculate",
        "sampling.top_p",
        "sampling.top_k",
    }
    assert (error["errors"][0]["message"], error["errors"][0]["param"]) == (error["message"], error["param"])
    assert not file.exists()
    alone = change(server, "", sequences=2, threads=-1).json()["error"]
    assert (alone["param"], "errors" in alone) == ("threads", False)


@pytest.mark.parametrize(
    "text", ["suffix:max=99", "suffix:longest=3", "ngram-mod:n=0", "draft-model:max=4", "auto;heads:max=99"]
)
def test_options_of_drafters_are_checked_before_a_model_is_loaded(
    server: Running, file: Path, text: str
) -> None:
    refused = change(server, "", speculate=text)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "speculate"), refused.text
    assert not file.exists()


def test_a_setting_that_does_not_exist(server: Running, file: Path) -> None:
    refused = change(server, "", thread=3)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "thread")
    assert "threads" in refused.json()["error"]["message"]
    assert not file.exists()


# --- the file ------------------------------------------------------------------------------------------


def test_a_save_takes_effect_at_once(server: Running) -> None:
    httpx.post(f"{server.url}/v1/models/fake/load", timeout=30).raise_for_status()
    version = change(server, "", aliases=["other"]).json()["version"]
    body = {"model": "other", "prompt": "a", "max_tokens": 3}
    assert httpx.post(f"{server.url}/v1/completions", json=body, timeout=30).status_code == 200
    assert states(server)["fake"]["outdated"] is False
    change(server, version, sequences=1)
    assert states(server)["fake"]["in_file"] is True


def test_two_writers_and_a_hand(server: Running, file: Path) -> None:
    first = settings_of(server)["version"]
    assert change(server, first, threads=1).status_code == 200
    conflict = change(server, first, threads=2)
    assert (conflict.status_code, conflict.json()["error"]["code"]) == (409, "settings_conflict")
    second = settings_of(server)["version"]
    file.write_text(file.read_text() + "\n# by hand\n[limits]\nmax_n = 2\n")
    assert change(server, second, threads=2).status_code == 409
    assert change(server, settings_of(server)["version"], threads=2).status_code == 200
    assert "# by hand" in file.read_text()
    assert read_settings(file).limits.max_n == 2
    assert settings_of(server)["values"]["threads"] == 2


def test_a_file_that_was_broken_by_hand(server: Running, file: Path) -> None:
    file.write_text("[models.fake]\npath = 3\n")
    broken = call(server, "GET", "models/fake/settings")
    assert (broken.status_code, broken.json()["error"]["param"]) == (400, None)
    assert change(server, "", threads=1).status_code == 400
    assert states(server)["fake"]["in_file"] is False
    assert file.read_text() == "[models.fake]\npath = 3\n"


def test_a_file_that_cannot_be_written(server: Running, file: Path) -> None:
    version = change(server, "", threads=1).json()["version"]
    file.chmod(0o444)
    refused = change(server, version, threads=2)
    assert refused.status_code == 400
    assert "read-only" in refused.json()["error"]["message"]
    assert settings_of(server)["values"]["threads"] == 1


def test_a_file_with_keys_that_is_gone_is_not_begun_anew(file: Path) -> None:
    """The next start would let everybody in."""
    file.write_text(
        f'admin_key_hash = "{hash_key(ADMIN)}"\n[[keys]]\nname = "alice"\nhash = "{hash_key(ALICE)}"\n'
    )
    live = LiveSettings(file, lambda settings: replace(settings, models={"fake": ModelSettings(path="fake")}))
    with serving("fake", settings=LOCKED, console=Parts(settings_file=file, live=live)) as server:
        file.unlink()
        admin = {"x-api-key": ADMIN}
        body = {"version": "", "values": {"threads": 1}}
        refused = call(server, "PUT", "models/fake/settings", json=body, headers=admin)
        assert refused.status_code == 400
        assert "no longer has any keys" in refused.json()["error"]["message"]
        assert not file.exists()


def test_keys_that_the_console_made_count_for_models_too(server: Running, file: Path, gguf: Path) -> None:
    made = call(server, "POST", "keys", json={"name": "first"}).json()
    file.unlink()
    admin = {"x-api-key": made["admin_key"]}
    refused = call(server, "POST", "models", json={"path": str(gguf)}, headers=admin)
    assert (refused.status_code, "no longer has any keys" in refused.text) == (400, True)
    assert not file.exists()


def test_a_disk_that_is_full(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("foredraft.server.settings_edit.write_atomically", full)
    refused = change(server, "", threads=1)
    assert refused.status_code == 400
    assert "No space left on device" in refused.json()["error"]["message"]


def test_what_the_server_cannot_make_of_the_file_is_not_saved(
    server: Running, file: Path, gguf: Path
) -> None:
    """A name that the command line's model has: the next start would fail, and so would every reading."""
    call(server, "POST", "models", json={"path": str(gguf), "name": "filed"}).raise_for_status()
    file.write_text(f"[models.filed]\npath = '{gguf}'\n")
    before, version = file.read_bytes(), settings_of(server, "filed")["version"]
    refused = change(server, version, "filed", aliases=["fake"])
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "aliases")
    assert file.read_bytes() == before
    assert settings_of(server, "filed")["values"]["aliases"] == []
    assert change(server, version, "filed", aliases=["other"]).status_code == 200


def test_a_file_that_an_editor_has_emptied_is_not_begun_anew(server: Running, file: Path, gguf: Path) -> None:
    version = call(server, "POST", "models", json={"path": str(gguf), "name": "a"}).json()["version"]
    saved = file.read_bytes()
    for emptied in (lambda: file.write_bytes(b""), file.unlink):
        emptied()
        refused = call(server, "POST", "models", json={"path": str(gguf), "name": "b"})
        assert (refused.status_code, refused.json()["error"]["code"]) == (409, "settings_conflict")
        assert not file.exists() or file.read_bytes() == b""
    file.write_bytes(saved)
    assert call(server, "DELETE", f"models/a?version={version}").status_code == 204


def test_the_last_model_is_removed_and_another_added(server: Running, file: Path, gguf: Path) -> None:
    for name in ("a", "b"):
        version = call(server, "POST", "models", json={"path": str(gguf), "name": name}).json()["version"]
        assert call(server, "DELETE", f"models/{name}?version={version}").status_code == 204
    assert not read_settings(file).models


# --- models come and go --------------------------------------------------------------------------------


@pytest.fixture
def gguf(tmp_path: Path) -> Path:
    path = tmp_path / "A tiny model.gguf"
    return tiny_llama(path)


def test_a_model_is_added_and_removed(server: Running, file: Path, gguf: Path) -> None:
    added = call(server, "POST", "models", json={"path": str(gguf), "values": {"sequences": 2}})
    assert added.status_code == 200, added.text
    assert (added.json()["name"], added.json()["values"]["sequences"]) == ("A-tiny-model", 2)
    again = call(server, "POST", "models", json={"path": str(gguf)})
    assert again.json()["name"] == "A-tiny-model-2"
    assert list(states(server)) == ["fake", "A-tiny-model", "A-tiny-model-2"]
    taken = call(server, "POST", "models", json={"path": str(gguf), "name": "fake"})
    assert (taken.status_code, taken.json()["error"]["param"]) == (400, "name")
    version = again.json()["version"]
    assert call(server, "DELETE", f"models/A-tiny-model?version={'0' * 32}").status_code == 409
    assert call(server, "DELETE", f"models/A-tiny-model?version={version}").status_code == 204
    assert list(states(server)) == ["fake", "A-tiny-model-2"]
    version = settings_of(server)["version"]
    beside = call(server, "DELETE", f"models/fake?version={version}")
    assert (beside.status_code, "command line" in beside.text) == (400, True)


def test_models_that_are_added_at_once_have_names_of_their_own(
    server: Running, file: Path, gguf: Path
) -> None:
    with ThreadPoolExecutor(8) as threads:
        adding = [threads.submit(call, server, "POST", "models", json={"path": str(gguf)}) for _ in range(8)]
        made = [each.result().json()["name"] for each in adding]
    assert len(set(made)) == 8
    assert set(read_settings(file).models) == {*made}


def test_one_name_for_two_models_at_once(server: Running, file: Path, gguf: Path) -> None:
    body = {"path": str(gguf), "name": "one"}
    with ThreadPoolExecutor(8) as threads:
        adding = [threads.submit(call, server, "POST", "models", json=body) for _ in range(8)]
        assert sorted(each.result().status_code for each in adding) == [200] + [400] * 7


def test_another_process_edits_while_models_are_added(server: Running, file: Path, gguf: Path) -> None:
    """Who does not say which version it has seen goes on with what there is."""
    script = (
        "import sys\nfrom pathlib import Path\nfrom foredraft.server.settings_edit import set_model\n"
        "for at in range(20): set_model(Path(sys.argv[1]), f'other-{at}', {'path': 'x.gguf'})\n"
    )
    editing = subprocess.Popen([sys.executable, "-c", script, str(file)])
    for at in range(10):
        added = call(server, "POST", "models", json={"path": str(gguf), "name": f"here-{at}"})
        assert added.status_code == 200, added.text
    assert editing.wait(60) == 0
    expected = {f"other-{at}" for at in range(20)} | {f"here-{at}" for at in range(10)}
    assert set(read_settings(file).models) == expected


@pytest.mark.parametrize("path", ["no such model", "", "a\0b", "x" * 5000, "../" * 40])
def test_what_is_no_model_is_not_added(server: Running, file: Path, path: str) -> None:
    refused = call(server, "POST", "models", json={"path": path})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "path")
    assert not file.exists()


@pytest.mark.parametrize("kind", ["text", "cut", "vocabulary"])
def test_a_file_that_cannot_be_loaded_is_not_served(
    server: Running, file: Path, gguf: Path, tmp_path: Path, kind: str
) -> None:
    """The next start would fail, with no page to mend it."""
    broken = tmp_path / "broken.gguf"
    if kind == "text":
        not_gguf(broken)
    elif kind == "cut":
        truncated(gguf, broken)
    else:
        vocab_only(broken)
    named = str(broken)
    adding = call(server, "POST", "models", json={"path": named})
    assert (adding.status_code, adding.json()["error"]["param"]) == (400, "path")
    for setting, refused in (
        ("path", change(server, "", path=named)),
        ("draft_model", change(server, "", draft_model=named)),
    ):
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, setting), refused.text
    assert not file.exists()


@pytest.mark.parametrize("name", [".", "..", "a/", "owner/name/"])
def test_names_that_cannot_end_an_address(server: Running, file: Path, gguf: Path, name: str) -> None:
    refused = call(server, "POST", "models", json={"path": str(gguf), "name": name})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "name")
    assert not file.exists()


def test_names_with_slashes(server: Running, gguf: Path) -> None:
    call(server, "POST", "models", json={"path": str(gguf), "name": "owner/name"}).raise_for_status()
    version = settings_of(server, "owner/name")["version"]
    assert change(server, version, "owner/name", threads=2).json()["values"]["threads"] == 2
    version = settings_of(server, "owner/name")["version"]
    assert call(server, "DELETE", f"models/owner/name?version={version}").status_code == 204


def test_the_default_model(server: Running, file: Path, gguf: Path) -> None:
    version = call(server, "POST", "models", json={"path": str(gguf), "name": "new"}).json()["version"]
    put = call(server, "PUT", "default-model", json={"version": version, "name": "new"})
    assert put.status_code == 204, put.text
    assert states(server)["new"]["default"]
    version = settings_of(server)["version"]
    assert call(server, "PUT", "default-model", json={"version": version, "name": "no"}).status_code == 404
    assert call(server, "PUT", "default-model", json={"version": version, "name": "fake"}).status_code == 204
    assert states(server)["fake"]["default"]
    version = settings_of(server)["version"]
    assert call(server, "PUT", "default-model", json={"version": version, "name": None}).status_code == 204
    assert "default_model =" not in file.read_text()


def test_what_runs_without_the_file_stays_when_the_file_begins(tmp_path: Path, gguf: Path) -> None:
    """As the command line does it: its implicit model is there only if the file has none."""
    file, implicit = tmp_path / "foredraft.toml", {"fake": ModelSettings(path="fake", speculate="off")}

    def overlay(settings: ServerSettings) -> ServerSettings:
        return ServerSettings(models=settings.models or implicit, any_model_name=False)

    live = LiveSettings(file, overlay, must_exist=False)
    with serving("fake", console=Parts(settings_file=file, live=live), reload=live.poll) as server:
        call(server, "POST", "models", json={"path": str(gguf), "name": "new"}).raise_for_status()
        assert list(states(server)) == ["fake", "new"]
        assert list(read_settings(file).models) == ["fake", "new"]
        assert states(server)["fake"]["default"]
        time.sleep(0.1)
        assert live.poll() is None


# --- who may -------------------------------------------------------------------------------------------


def test_only_the_admin_changes(tmp_path: Path) -> None:
    file = tmp_path / "foredraft.toml"
    with serving("fake", settings=LOCKED, console=Parts(settings_file=file)) as server:
        changes: list[tuple[str, str, Any]] = [
            ("PUT", "models/fake/settings", {"version": "", "values": {"threads": 1}}),
            ("POST", "models", {"path": "fake"}),
            ("PUT", "default-model", {"version": "", "name": "fake"}),
            ("DELETE", "models/fake?version=", None),
        ]
        for method, path, body in changes:
            assert call(server, method, path, json=body).status_code == 401
            assert call(server, method, path, json=body, headers={"x-api-key": ALICE}).status_code == 403
        assert not file.exists()
        reading = {"x-api-key": ALICE}
        for path in ("models", "models/fake/settings"):
            assert call(server, "GET", path, headers=reading).status_code == 200


def test_models_can_be_followed(server: Running) -> None:
    with following(server.url, "models") as stream:
        name, data = next(stream)
    assert (name, data["configured"][0]["name"]) == ("models", "fake")
