"""Hosts that are lost while a model is in use end what is computed with an error, and not the process."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from foredraft import Engine
from foredraft.backends.llamacpp.rpc.library import library
from foredraft.types import FinishEvent
from gguf_factory import tiny_llama
from rpc_process import children_of, end_children, needs_library, rpc_server

pytestmark = needs_library

PROMPT = "the cat sat on the mat. the cat"


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("models") / "tiny.gguf", layers=4)


@pytest.fixture
def impatient() -> Iterator[None]:
    library(None).patience(3000)
    yield
    library(None).patience(15000)


def engine_on(path: Path, cache: Path, host: str) -> Engine:
    return Engine.load(path, threads=1, cache_dir=cache, context_length=256, rpc=[host], gpu_layers=2)


def end(process: subprocess.Popen[str]) -> None:
    """The host and everything on it."""
    end_children(process)
    process.kill()


def stop(process: subprocess.Popen[str]) -> None:
    """The host stands still, and its connections stay."""
    os.kill(process.pid, signal.SIGSTOP)
    for child in children_of(process):
        os.kill(child, signal.SIGSTOP)


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize(("lose", "reason"), [(end, "closed the connection"), (stop, "does not answer")])
def test_a_host_that_is_lost_ends_the_request(
    tiny: Path, tmp_path: Path, lose: Callable[[subprocess.Popen[str]], None], reason: str
) -> None:
    with rpc_server(tmp_path) as (host, process):
        stopped: list[int] = []
        try:
            with engine_on(tiny, tmp_path, host) as engine:
                assert engine.generate(PROMPT, max_tokens=8, temperature=0).text
                began = time.monotonic()
                stopped = children_of(process)
                lose(process)
                for _ in range(2):  # also the next one, at once
                    error = engine.generate(PROMPT, max_tokens=200, temperature=0).error or ""
                    assert f"The RPC host {host} was lost" in error
                    assert reason in error
                assert time.monotonic() - began < 20
        finally:
            for child in stopped:
                with suppress(ProcessLookupError):
                    os.kill(child, signal.SIGKILL)


def test_a_host_that_is_lost_in_the_middle_of_an_answer(tiny: Path, tmp_path: Path) -> None:
    with rpc_server(tmp_path) as (host, process), engine_on(tiny, tmp_path, host) as engine:
        answer = engine.stream(PROMPT, max_tokens=200, temperature=0)
        next(answer)
        end(process)
        *_, last = answer
        assert isinstance(last, FinishEvent)
        assert f"The RPC host {host} was lost" in (last.error or "")


def test_a_model_is_loaded_again_when_its_host_is_back(tiny: Path, tmp_path: Path) -> None:
    with rpc_server(tmp_path) as (host, process), engine_on(tiny, tmp_path, host) as engine:
        text = engine.generate(PROMPT, max_tokens=16, temperature=0).text
        end(process)
        assert "was lost" in (engine.generate(PROMPT + " sat", max_tokens=16, temperature=0).error or "")
    with (
        rpc_server(tmp_path, "--port", host.partition(":")[2]) as (again, _),
        engine_on(tiny, tmp_path, again) as engine,
    ):
        assert engine.generate(PROMPT, max_tokens=16, temperature=0).text == text


def test_a_client_that_sends_rubbish_does_not_end_the_server(tiny: Path, tmp_path: Path) -> None:
    with rpc_server(tmp_path) as (host, process), engine_on(tiny, tmp_path, host) as engine:
        text = engine.generate(PROMPT, max_tokens=16, temperature=0).text
        name, _, port = host.partition(":")
        hello = bytes((14, 24)) + bytes(7 + 24)
        for rubbish in (
            os.urandom(4096),
            b"GET / HTTP/1.1\r\n\r\n",
            hello + os.urandom(4096),
            hello + bytes((10, 255, 255, 255, 255, 255, 255, 255, 127)),  # a graph of 9 exabytes
            hello + bytes((10, 20)) + bytes(7) + b"\xff" * 20,
        ):
            with socket.create_connection((name, int(port)), 20) as connection:
                connection.settimeout(20)
                connection.sendall(rubbish)
                connection.shutdown(socket.SHUT_WR)
                with suppress(ConnectionResetError):
                    while connection.recv(4096):
                        pass
        assert process.poll() is None
        assert engine.generate(PROMPT, max_tokens=16, temperature=0).text == text


def test_several_clients_at_once(tiny: Path, tmp_path: Path) -> None:
    with (
        rpc_server(tmp_path) as (host, _),
        engine_on(tiny, tmp_path / "a", host) as one,
        engine_on(tiny, tmp_path / "b", host) as other,
    ):
        texts: list[str] = []

        def answer(engine: Engine) -> None:
            texts.append(engine.generate(PROMPT, max_tokens=32, temperature=0).text)

        threads = [threading.Thread(target=answer, args=(engine,)) for engine in (one, other)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert len(texts) == 2
        assert len(set(texts)) == 1


def test_the_server_ends_with_ctrl_c_and_its_processes_with_it(tmp_path: Path) -> None:
    with rpc_server(tmp_path) as (_, process):
        while not (children := children_of(process)):
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 130
        # One that was just being started ends when it finds that the server has.
        patience = time.monotonic() + 20
        while any(Path(f"/proc/{child}").exists() for child in children):
            assert time.monotonic() < patience
            time.sleep(0.05)


def test_the_server_ends_with_sigterm_while_it_computes(tiny: Path, tmp_path: Path) -> None:
    with rpc_server(tmp_path) as (host, process), engine_on(tiny, tmp_path, host) as engine:
        answer = engine.stream(PROMPT, max_tokens=200, temperature=0)
        next(answer)
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 143
        *_, last = answer
        assert isinstance(last, FinishEvent)
        assert f"The RPC host {host} was lost" in (last.error or "")


def test_a_port_in_use_is_an_error(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        refused = pytest.raises(pytest.fail.Exception, match=f"Cannot listen on 127.0.0.1:{port}")
        with refused, rpc_server(tmp_path, "--port", port):
            pass
