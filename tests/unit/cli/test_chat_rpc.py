"""A chat goes on when a machine that computes for its model was lost, and is back."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from foredraft.cli.chat_session import read_messages
from gguf_factory import tiny_llama
from rpc_process import needs_library, rpc_server

Say = Callable[[str, str], str]


@contextmanager
def chatting(folder: Path, *options: str) -> Iterator[Say]:
    """`foredraft chat` over a pipe. What it yields sends a line, waits until the notes of what follows have a
    text, and returns them.
    """
    notes = folder / "notes.txt"
    with notes.open("w") as written:
        process = subprocess.Popen(
            [sys.executable, "-m", "foredraft", "chat", "--no-remember", "--no-color", *options],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=written,
            text=True,
            cwd=folder,
            env={**os.environ, "FOREDRAFT_CACHE": str(folder / "cache"), "COLUMNS": "500"},
        )
    assert process.stdin is not None
    stdin = process.stdin

    def say(line: str, expected: str) -> str:
        before = len(notes.read_text())
        stdin.write(f"{line}\n")
        stdin.flush()
        patience = time.monotonic() + 90
        while expected not in (said := notes.read_text()[before:]):
            assert process.poll() is None, notes.read_text()
            assert time.monotonic() < patience, notes.read_text()
            time.sleep(0.05)
        return said

    try:
        yield say
        stdin.close()
        assert process.wait(60) == 0, notes.read_text()
    finally:
        process.kill()
        process.wait(20)
        with suppress(OSError):
            stdin.close()


@needs_library
def test_a_chat_goes_on_when_its_host_is_back(tmp_path: Path) -> None:
    tiny = tiny_llama(tmp_path / "tiny.gguf")
    options = ("-m", str(tiny), "--temp", "0", "--max-tokens", "8", "--threads", "1", "--ctx", "256")
    with ExitStack() as open_things:
        host, process = open_things.enter_context(rpc_server(tmp_path))
        say = open_things.enter_context(chatting(tmp_path, *options, "--rpc", host, "--gpu-layers", "1"))
        assert "lost" not in say("the cat", "tokens")
        process.terminate()  # and all that it started, so that the port is free
        process.wait(20)
        said = say("sat on", "at the next message")
        assert f"The RPC host {host} was lost" in said
        away = say("the mat", "tries to load the model again")
        assert f"The RPC host {host} is down" in away
        assert "foredraft rpc-server" in away
        with rpc_server(tmp_path, "--port", host.partition(":")[2]):
            assert "Loading the model again" in say("the mat", "tokens")
        say(f"/save {tmp_path / 'kept.json'}", "Saved")
    questions = [one["content"] for one in read_messages(tmp_path / "kept.json") if one["role"] == "user"]
    assert questions == ["the cat", "the mat"]
