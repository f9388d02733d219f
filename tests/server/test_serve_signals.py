"""`foredraft serve` and signals: what is waited for, the exit code, and what is said."""

from __future__ import annotations

import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx
import pytest

import gguf_factory
from event_streams import following
from foredraft.cli.serve import _openable
from matrix import matrix, nightly

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="no such signals there")

FOREVER = """
import ctypes, os, sys
import foredraft.engine.engine as engine_module
from foredraft.cli import main

def blocked(*arguments, **options):
    os.write(2, b"native\\n")
    ctypes.CDLL(None).sleep(120)

def busy(*arguments, **options):
    os.write(2, b"native\\n")
    while True:
        ctypes.CDLL(None).usleep(1000)

engine_module.Engine.load = {"blocked": blocked, "busy": busy}[sys.argv.pop(1)]
main()
"""
"""Loading takes for ever, in native code or in Python."""

CODES = {signal.SIGINT: 130, signal.SIGTERM: 143}


@contextmanager
def started(folder: Path, *command: str, until: str) -> Iterator[tuple[subprocess.Popen[str], list[str]]]:
    """A server that has said `until`, and the lines up to there."""
    process = subprocess.Popen(
        [sys.executable, *command, "--port", "0", "-t", "1"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        cwd=folder,
        env={**os.environ, "FOREDRAFT_CACHE": str(folder / "cache")},
    )
    assert process.stderr is not None
    said: list[str] = []
    try:
        for line in process.stderr:
            said.append(line)
            if until in line:
                yield process, said
                return
        pytest.fail("it did not start:\n" + "".join(said))
    finally:
        process.kill()
        process.wait()
        process.stderr.close()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    gguf_factory.tiny_llama(tmp_path / "tiny.gguf", ctx_train=512)
    return tmp_path


@matrix(strength=1, how=["blocked", "busy"], number=CODES)
def test_a_model_that_is_being_loaded_is_not_waited_for(
    folder: Path, how: str, number: signal.Signals
) -> None:
    with started(folder, "-c", FOREVER, how, "serve", "tiny.gguf", until="native") as (process, _):
        process.send_signal(number)
        _, rest = process.communicate(timeout=30)
    assert process.returncode == CODES[number]
    assert rest == "Stopped.\n"


@pytest.mark.parametrize("number", CODES)
def test_a_server_ends_alike_and_closes_its_record(folder: Path, number: signal.Signals) -> None:
    command = ("-m", "foredraft", "serve", "tiny.gguf", "--record", "traces.jsonl")
    with started(folder, *command, until="Page: ") as (process, said):
        url = said[-1].split()[-1]
        body = {"prompt": "one", "max_tokens": 4, "ignore_eos": True}
        assert httpx.post(f"{url}v1/completions", json=body, timeout=60).status_code == 200
        process.send_signal(number)
        _, rest = process.communicate(timeout=60)
    assert process.returncode == CODES[number]
    assert rest.count("Stopped.") == 1
    assert "Recorded 1 answer in" in rest
    assert "Traceback" not in rest


def test_an_open_page_does_not_keep_a_server_from_stopping(folder: Path) -> None:
    with (
        started(folder, "-m", "foredraft", "serve", "tiny.gguf", until="Page: ") as (process, said),
        following(said[-1].split()[-1].rstrip("/"), "overview,speculation") as stream,
    ):
        assert {next(stream).name, next(stream).name} == {"overview", "speculation"}
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130
        assert all(event.name in ("overview", "speculation") for event in stream), "it ends properly"


STREAM = {"prompt": "one", "max_tokens": 400, "ignore_eos": True, "stream": True, "logprobs": 20}
"""Some hundred kilobytes: more than a client with a small window takes without reading."""


@contextmanager
def stalled(url: str, requests: bytes) -> Iterator[socket.socket]:
    """A client that has sent requests and read only the beginning of what came."""
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.settimeout(60)
        client.connect(("127.0.0.1", int(url.rstrip("/").rpartition(":")[2])))
        client.sendall(requests)
        assert client.recv(10) == b"HTTP/1.1 2"
        yield client


def test_a_client_that_reads_a_trickle_does_not_keep_a_server_from_stopping(folder: Path) -> None:
    with started(folder, "-m", "foredraft", "serve", "tiny.gguf", until="Page: ") as (process, said):
        many = b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n" * 500
        with stalled(said[-1].split()[-1], many) as client:
            process.send_signal(signal.SIGTERM)
            for _ in range(100):
                if process.poll() is not None:
                    break
                with suppress(ConnectionResetError):
                    client.recv(50)
                time.sleep(0.3)
            assert process.poll() == 143
        assert process.stderr is not None
        rest = [line for line in process.stderr.read().splitlines() if " GET /openapi.json " not in line]
        assert [line.removeprefix(line[:20]) for line in rest[:1]] == ["Unloading tiny"]
        assert rest[1:] == ["Stopped."]


def test_a_stream_whose_client_reads_again_ends_properly(folder: Path) -> None:
    with started(folder, "-m", "foredraft", "serve", "tiny.gguf", until="Page: ") as (process, said):
        body = json.dumps(STREAM).encode()
        head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        request = head + f"Content-Length: {len(body)}\r\n\r\n".encode() + body
        with stalled(said[-1].split()[-1], request) as client:
            time.sleep(0.5)
            process.send_signal(signal.SIGTERM)
            time.sleep(1)
            found = b""
            while piece := client.recv(1 << 16):
                found += piece
        assert found.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
        assert b'"finish_reason":"length"' in found
        assert process.wait(60) == 143


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_log_that_nobody_reads_any_more_fails_no_request(
    folder: Path, unbuffered: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`foredraft serve 2>&1 | head`, or a log on a full disk."""
    monkeypatch.setenv("PYTHONUNBUFFERED", unbuffered)
    with started(folder, "-m", "foredraft", "serve", "tiny.gguf", until="Page: ") as (process, said):
        assert process.stderr is not None
        process.stderr.close()
        body = {"prompt": "one", "max_tokens": 4, "ignore_eos": True}
        for stream in (False, True, False):
            url = f"{said[-1].split()[-1]}v1/completions"
            reply = httpx.post(url, json={**body, "stream": stream}, timeout=60)
            assert reply.status_code == 200
            assert not stream or reply.text.endswith("data: [DONE]\n\n")
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 143


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
@pytest.mark.parametrize(
    "streams",
    [
        "<&- >&- 2>&-",
        *(pytest.param(streams, marks=nightly) for streams in (">&- 2>&-", ">/dev/full 2>/dev/full")),
    ],
)
def test_a_server_needs_no_standard_streams(folder: Path, streams: str) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = shlex.join(
        [sys.executable, "-m", "foredraft", "serve", "tiny.gguf", "-t", "1", "--port", str(port)]
    )
    environment = {**os.environ, "FOREDRAFT_CACHE": str(folder / "cache")}
    process = subprocess.Popen(["bash", "-c", f"exec {command} {streams}"], cwd=folder, env=environment)
    try:
        body = {"prompt": "one", "max_tokens": 4, "ignore_eos": True}
        while process.poll() is None:
            try:
                reply = httpx.post(f"http://127.0.0.1:{port}/v1/completions", json=body, timeout=60)
            except httpx.ConnectError:
                time.sleep(0.1)
                continue
            assert reply.status_code == 200
            break
        assert process.poll() is None, "it has ended"
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 143
    finally:
        process.kill()
        process.wait()


def test_the_page_is_named_beside_the_api(folder: Path) -> None:
    with started(folder, "-m", "foredraft", "serve", "tiny.gguf", until="Page: ") as (_, said):
        api, page = said[-2].split()[-1], said[-1].split()[-1]
        assert api == f"{page}v1"
        assert "<html" in httpx.get(page, timeout=60).text


@pytest.mark.parametrize(
    ("url", "opened"),
    [
        ("http://127.0.0.1:80", "http://127.0.0.1:80"),
        ("http://0.0.0.0:80", "http://127.0.0.1:80"),
        ("http://[::]:80", "http://[::1]:80"),
    ],
)
def test_the_address_of_all_interfaces_is_none_of_a_page(url: str, opened: str) -> None:
    assert _openable(url) == opened
