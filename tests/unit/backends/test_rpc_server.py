"""The server's bookkeeping of its processes, which here are pipes."""

from __future__ import annotations

import io
import os
import subprocess

import pytest

from foredraft.backends.llamacpp.rpc import server
from foredraft.backends.llamacpp.rpc.server import SPARE, RPCServer, Serving
from foredraft.errors import BackendError


class Process:
    """One that is told what to say."""

    def __init__(self, pipe: int) -> None:
        self.stdin, self._pipe, self.ended = io.BytesIO(), os.dup(pipe), False

    def say(self, text: bytes) -> None:
        os.write(self._pipe, text)

    def end(self) -> None:
        os.close(self._pipe)
        self.ended = True

    def kill(self) -> None:
        if not self.ended:
            self.end()

    def wait(self) -> int:
        return 9


class Running:
    """A server whose processes are listed in `made`; `turn` has it hear all that was said."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.made: list[Process] = []
        self.told: list[str] = []

        def popen(command: list[str], **_: object) -> Process:
            self.made.append(Process(int(command[4])))
            return self.made[-1]

        monkeypatch.setattr(subprocess, "Popen", popen)
        self.server = RPCServer(Serving(port=0), self.told.append)
        self.turn()

    def turn(self) -> None:
        for key, _ in self.server._selector.select(0):
            self.server._hear(key.data, key.fd)
        while sum(not client for client in self.server._children.values()) < SPARE:
            self.server._start()


def test_processes_that_end_while_nothing_connects_do_not_end_the_server(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As by a system that is short of memory: they were ready, and others will be."""
    running = Running(monkeypatch)
    for number in range(5):
        running.made[number].say(b"ready\n")
        running.turn()
        running.made[number].end()
        running.turn()
    assert len(running.made) == 5 + SPARE
    assert running.told == []
    running.server.close()


def test_processes_that_end_before_they_are_ready_end_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    running = Running(monkeypatch)
    for number in range(2):
        running.made[number].end()
        running.turn()
    running.made[2].end()
    with pytest.raises(BackendError, match="fail with code 9"):
        running.turn()
    running.server.close()


def test_a_client_is_told_however_its_lines_arrive(monkeypatch: pytest.MonkeyPatch) -> None:
    running = Running(monkeypatch)
    running.made[0].say(b"ready\n10.0.0.1:5\n")
    running.turn()
    running.made[1].say(b"ready\n")
    running.turn()
    running.made[1].say(b"10.0.0.1:6\n")
    running.turn()
    assert running.told == ["10.0.0.1:5 is connected", "10.0.0.1:6 is connected"]
    assert len(running.made) == 2 + SPARE
    running.server.close()


@pytest.mark.parametrize(("address", "alone"), [("127.0.0.2", True), ("10.0.0.2", False), ("0.0.0.0", False)])
def test_only_an_address_of_loopback_counts_as_one(
    monkeypatch: pytest.MonkeyPatch, address: str, alone: bool
) -> None:
    """Not a name that begins like one, such as localhost.example."""

    class Listens:
        def getsockname(self) -> tuple[str, int]:
            return address, 1

    monkeypatch.setattr(server, "_listening", lambda *_: Listens())
    assert RPCServer(Serving(host="localhost.example"), print).on_loopback is alone
