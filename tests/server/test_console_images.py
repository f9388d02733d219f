"""The settings [images] of the console: read and changed in the settings file, in effect at once."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from PIL import Image as Pillow

from foredraft.server.auth import hash_key, new_key
from foredraft.server.console.parts import Parts
from foredraft.server.settings import KeySettings, ModelSettings, ServerSettings
from foredraft.server.settings_edit import add_key
from foredraft.server.settings_file import read_settings
from foredraft.server.taking import LiveSettings
from http_server import Running, serving

ALICE, ADMIN = new_key(), new_key()
FILE = """\
# mine
[images]  # of one request
max_images = 2
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "foredraft.toml"
    path.write_text(FILE)
    add_key(path, KeySettings(name="alice", hash=hash_key(ALICE)), admin_key_hash=hash_key(ADMIN))
    return path


@pytest.fixture
def running(file: Path) -> Iterator[Running]:
    def overlay(settings: ServerSettings) -> ServerSettings:  # the model is named on the command line
        return replace(settings, models={"fake": ModelSettings(path="fake")})

    live = Parts(settings_file=file, live=LiveSettings(file, overlay, must_exist=False))
    with serving(settings=read_settings(file), console=live, sees=True) as running:
        yield running


def call(running: Running, method: str, path: str = "/console/images", **options: Any) -> httpx.Response:
    return httpx.request(method, running.url + path, headers={"x-api-key": ADMIN}, timeout=30, **options)


def put(running: Running, **changed: Any) -> httpx.Response:
    read = call(running, "GET").json()
    return call(running, "PUT", json={"version": read["version"], **read["values"], **changed})


def ask(running: Running, images: int) -> int:
    out = io.BytesIO()
    Pillow.new("RGB", (16, 16)).save(out, "PNG")
    url = "data:image/png;base64," + base64.b64encode(out.getvalue()).decode()
    parts = [{"type": "image_url", "image_url": {"url": url}}] * images
    body = {"model": "fake", "max_tokens": 2, "messages": [{"role": "user", "content": parts}]}
    return call(running, "POST", "/v1/chat/completions", json=body).status_code


def test_a_change_is_written_and_counts_at_once(running: Running, file: Path, tmp_path: Path) -> None:
    found = call(running, "GET").json()
    assert found["values"] == {**found["defaults"], "max_images": 2}
    assert found["defaults"]["max_total_pixels"] == 200_000_000
    assert [ask(running, count) for count in (2, 3)] == [200, 400]
    changed = put(running, max_images=3, folders=[str(tmp_path)], remote=True, remote_timeout_s=2.5).json()
    assert changed["values"]["folders"] == [str(tmp_path)]
    assert [ask(running, count) for count in (3, 4)] == [200, 400]
    text = file.read_text()
    assert "# mine\n[images]  # of one request\nmax_images = 3\n" in text
    assert "max_bytes" not in text  # what is the default stays out
    images = read_settings(file).images
    assert (images.remote, images.remote_timeout_s, images.folders) == (True, 2.5, (tmp_path,))


def test_null_is_the_default(running: Running, file: Path) -> None:
    assert put(running, max_images=None).json()["values"]["max_images"] == 32
    assert "[images]" not in file.read_text()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_images", 0),
        ("max_total_pixels", "many"),
        ("folders", "x"),
        ("remote", 1),
        ("remote_timeout_s", -1),
        ("remote_timeout_s", 3601),
        ("remote_timeout_s", 1e10),
        ("remote_timeout_s", 10**400),
    ],
)
def test_what_is_wrong_is_said_of_its_field(running: Running, file: Path, name: str, value: object) -> None:
    before = file.read_text()
    refused = put(running, **{name: value})
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == name
    assert file.read_text() == before


def test_a_change_of_another_version_is_refused(running: Running, file: Path) -> None:
    version = call(running, "GET").json()["version"]
    put(running, max_images=5)
    refused = call(running, "PUT", json={"version": version, "max_images": 6})
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "settings_conflict")
    assert read_settings(file).images.max_images == 5


def test_only_the_admin_reads_and_changes_them(running: Running) -> None:
    for method, body in (("GET", None), ("PUT", {})):
        reply = httpx.request(
            method, f"{running.url}/console/images", headers={"x-api-key": ALICE}, json=body, timeout=30
        )
        assert reply.status_code == 403
