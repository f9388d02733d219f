"""Training while the server is idle: when it begins, and that requests end it."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from foredraft.cli.draft_make import make
from foredraft.errors import ConfigError, MissingDependencyError
from foredraft.server import idle_training
from foredraft.server.idle_training import IdleTraining, make_command, spawner
from foredraft.server.run import _training
from foredraft.server.settings import ModelSettings, ServerSettings


class FakeChild:
    def __init__(self) -> None:
        self.code: int | None = None
        self.terminated = 0
        self.killed = 0
        self.stubborn = False

    def poll(self) -> int | None:
        return self.code

    def terminate(self) -> None:
        self.terminated += 1

    def kill(self) -> None:
        self.killed += 1

    def wait(self, timeout: float | None = None) -> int:
        if self.stubborn and timeout is not None:
            raise subprocess.TimeoutExpired("make", timeout)
        return 0


class Server:
    """A server without requests, of which time is told."""

    def __init__(self) -> None:
        self.now = 0.0
        self.children: list[FakeChild] = []
        self.training = IdleTraining(self.spawn, clock=lambda: self.now, after_s=300.0)

    def spawn(self) -> FakeChild:
        self.children.append(FakeChild())
        return self.children[-1]

    def wait(self, seconds: float, *, busy: bool = False) -> None:
        self.now += seconds
        self.training.check(busy=busy)


@pytest.fixture
def server() -> Server:
    return Server()


def test_it_begins_after_a_pause(server: Server) -> None:
    server.wait(299)
    assert not server.children
    server.wait(2)
    server.wait(100)
    assert len(server.children) == 1


def test_a_request_ends_it_and_the_next_pause_resumes_it(server: Server) -> None:
    server.wait(301)
    server.training.request()
    server.training.request()
    assert server.children[0].terminated == 1
    server.wait(2)  # it has not ended yet
    server.children[0].code = -15
    server.wait(2)
    server.wait(200)
    assert len(server.children) == 1
    server.wait(100)
    assert len(server.children) == 2
    assert not server.training.finished


def test_while_answers_are_generated_there_is_no_pause(server: Server) -> None:
    for _ in range(10):
        server.wait(100, busy=True)
    assert not server.children
    server.wait(299)
    assert not server.children
    server.wait(301)
    server.wait(1, busy=True)
    assert server.children[0].terminated == 1


@pytest.mark.parametrize("code", [0, 2])
def test_when_it_has_ended_it_is_not_started_again(server: Server, code: int) -> None:
    server.wait(301)
    server.children[0].code = code
    server.wait(1)
    server.wait(1000)
    assert len(server.children) == 1
    assert server.training.finished


def test_a_command_that_cannot_be_started_is_tried_once() -> None:
    def spawn() -> FakeChild:
        raise OSError("no processes")

    now = [0.0]
    training = IdleTraining(spawn, clock=lambda: now[0])
    now[0] = 1000.0
    training.check(busy=False)
    assert training.finished


def test_closing_ends_it_even_if_it_does_not_want_to(server: Server) -> None:
    server.wait(301)
    server.children[0].stubborn = True
    server.training.close()
    assert (server.children[0].terminated, server.children[0].killed) == (1, 1)
    server.training.close()
    server.wait(1000)
    assert len(server.children) == 1


def test_a_real_child_has_the_lowest_priority_and_ends(tmp_path: Path) -> None:
    file = tmp_path / "told"
    program = (
        "import os, pathlib, time; time.sleep(0.3);"
        f"pathlib.Path({str(file)!r}).write_text(f\"{{os.nice(0)}} {{os.environ['ADDED']}}\"); time.sleep(60)"
    )
    training = IdleTraining(
        spawner([sys.executable, "-c", program], {**os.environ, "ADDED": "yes"}), after_s=0.0
    )
    training.check(busy=False)
    deadline = time.monotonic() + 60
    while not (file.exists() and file.read_text()) and time.monotonic() < deadline:
        time.sleep(0.05)
    training.close()
    assert file.read_text() == "19 yes"


def test_the_command_makes_a_head_of_the_default_model(tmp_path: Path) -> None:
    model = tmp_path / "m.gguf"
    model.write_bytes(b"GGUF")
    models = {"m": ModelSettings(path=str(model), threads=2)}
    assert _training(ServerSettings(models=models, cache_dir=tmp_path), None, {}) is None
    wanted = ServerSettings(models=models, cache_dir=tmp_path, idle_training=True)
    assert _training(wanted, None, {}) is not None
    command = make_command(model, models["m"], None)
    assert command[1:5] == ["-m", "foredraft", "draft", "make"]
    assert command[5] == str(model)
    assert "--threads=2" in command


def test_the_model_is_loaded_as_the_server_loads_it(tmp_path: Path) -> None:
    """The command takes these options, and they are those of the settings."""
    settings = ModelSettings(
        path="m.gguf", threads=3, gpu_layers=7, memory="ram", batch=64, ubatch=32, kv_type="q8_0/f16"
    )
    library = tmp_path / "libllama.so"
    command = make_command(tmp_path / "m.gguf", settings, library)
    found = make.make_context("make", command[5:]).params
    for name in ("threads", "gpu_layers", "memory", "batch", "ubatch", "kv_type"):
        assert found[name] == getattr(settings, name)
    assert found["llama_library"] == library
    unset = make.make_context(
        "make", make_command(tmp_path / "m.gguf", ModelSettings(path="m.gguf"), None)[5:]
    )
    assert unset.params["gpu_layers"] == -1
    assert unset.params["llama_library"] is None


@pytest.mark.parametrize("package", ["torch", "gguf"])
def test_without_a_package_the_server_says_so_at_its_start(
    tmp_path: Path, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tmp_path / "m.gguf"
    model.write_bytes(b"GGUF")
    monkeypatch.setattr(
        idle_training, "find_spec", lambda name: None if name == package else importlib.util.find_spec(name)
    )
    settings = ServerSettings(
        models={"m": ModelSettings(path=str(model))}, cache_dir=tmp_path, idle_training=True
    )
    with pytest.raises(MissingDependencyError, match=f"idle_training.*{package}"):
        _training(settings, None, {})


def test_a_folder_of_safetensors_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(b"")
    settings = ServerSettings(
        models={"m": ModelSettings(path=str(tmp_path))}, cache_dir=tmp_path, idle_training=True
    )
    with pytest.raises(ConfigError, match="not a GGUF file"):
        _training(settings, None, {})
