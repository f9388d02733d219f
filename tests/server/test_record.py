"""`foredraft serve --record`: answers in use become a trace file, whatever happens to the server."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

import gguf_factory
from foredraft.bench.curves import find_curve
from foredraft.bench.replay import replay
from foredraft.bench.trace import read_traces

READY = re.compile(r" on (http://\S+?)/v1$")


class Server:
    """`foredraft serve` in a process of its own; `said` is what it wrote until it was ready."""

    def __init__(self, folder: Path, *arguments: object) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "foredraft", "serve", "tiny.gguf", "--port", "0", "-t", "1"]
            + [str(argument) for argument in arguments],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            cwd=folder,
            env={**os.environ, "FOREDRAFT_CACHE": str(folder / "cache")},
        )
        self.said: list[str] = []
        self.url = ""
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.said.append(line)
            if found := READY.search(line.rstrip()):
                self.url = found[1]
                break

    def answer(self, prompt: str) -> None:
        body = {"prompt": prompt, "max_tokens": 12, "ignore_eos": True}
        assert httpx.post(f"{self.url}/v1/completions", json=body, timeout=60).status_code == 200

    def end(self, number: signal.Signals) -> str:
        """Send a signal; returns what the server still said."""
        self.process.send_signal(number)
        _, rest = self.process.communicate(timeout=60)
        return rest


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    gguf_factory.tiny_llama(tmp_path / "tiny.gguf", ctx_train=512)
    return tmp_path


def test_a_killed_server_leaves_a_file_that_is_read_continued_and_replayed(folder: Path) -> None:
    file = folder / "traces.jsonl"
    first = Server(folder, "--record", file)
    try:
        assert sum("texts of all requests" in line for line in first.said) == 1
        assert str(file) in "".join(first.said)
        for prompt in ("one", "two", "one"):
            first.answer(prompt)
        while len(read_traces(file).traces) < 3:
            time.sleep(0.05)
    finally:
        first.end(signal.SIGKILL)
    with file.open("ab") as torn:
        torn.write(b'{"id": "half a li')
    second = Server(folder, "--record", file)
    try:
        second.answer("three")
    finally:
        said = second.end(signal.SIGINT)
    assert "Recorded 1 answer in" in said
    traces = read_traces(file)
    assert [len(trace.output) for trace in traces.traces] == [12] * 4
    assert file.stat().st_mode & 0o077 == 0
    assert len(replay(traces, find_curve("flat"), "auto").rows) == 4


def test_without_the_flag_nothing_is_recorded(folder: Path) -> None:
    server = Server(folder)
    try:
        server.answer("one")
    finally:
        server.end(signal.SIGINT)
    assert "Recording" not in "".join(server.said)
    assert not list(folder.glob("*.jsonl*"))


def test_a_file_of_another_kind_stops_the_start(folder: Path) -> None:
    (folder / "notes.txt").write_text("mine\n")
    server = Server(folder, "--record", "notes.txt")
    _, rest = server.process.communicate(timeout=60)
    assert not server.url
    assert "Recorded" not in "".join([*server.said, rest])
    assert server.process.returncode not in (0, None)
    assert "notes.txt" in "".join(server.said)
    assert (folder / "notes.txt").read_text() == "mine\n"
