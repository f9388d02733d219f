"""A model that Ollama keeps, by its name: `run`, `chat`, `doctor`, `serve`, and as a draft model."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

import other_programs
from command_line import Command
from foredraft.cli import paths, serve
from foredraft.server.run import loader, size_on_disk
from foredraft.server.settings import ModelSettings, ServerSettings


@pytest.fixture(autouse=True)
def blob(tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of the one model of Ollama."""
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path / "ollama"))
    return other_programs.ollama(
        tmp_path / "ollama", "registry.ollama.ai/someone/writer/1b", tiny.read_bytes()
    )


def test_run(foredraft: Command) -> None:
    ran = foredraft("run", "someone/writer:1b", "Once", "--raw", "-n", "4", "--ctx", "64", "--json")
    assert ran.code == 0, ran.err
    assert len(json.loads(ran.out)["tokens"]) == 4


def test_run_with_it_as_a_draft_model(foredraft: Command) -> None:
    words = ("run", "-m", "someone/writer", "-md", "someone/writer:1b", "--raw", "Once", "-n", "8")
    ran = foredraft(*words, "--temp", "0", "--ctx", "64", "--json")
    assert ran.code == 0, ran.err
    assert "draft-model" in json.loads(ran.out)["speculation"]["drafters"]


def test_chat(foredraft: Command) -> None:
    ran = foredraft("chat", "someone/writer:1b", "-n", "4", "--ctx", "256", stdin=b"Hello\n")
    assert ran.code == 0, ran.err


def test_serve_by_the_name_it_has(blob: Path) -> None:
    named = serve._named(("someone/writer",))
    assert named == {"someone/writer:1b": (blob, ("someone/writer",))}


def test_serve_a_model_of_the_settings_file(blob: Path) -> None:
    model = ModelSettings(path="someone/writer:1b", context_length=64)
    settings = ServerSettings(models={"writer": model})
    others = paths.other_programs()
    assert size_on_disk(settings, others)(model) == blob.stat().st_size
    other = replace(model, mmproj=str(blob))  # a file of that size
    assert size_on_disk(settings, others)(other) == 2 * blob.stat().st_size
    assert size_on_disk(settings, others)(replace(model, mmproj="none")) == blob.stat().st_size
    with loader(settings, other_programs=others)(model) as engine:
        assert engine.model.info.size_bytes


def test_an_ambiguous_name_lists_what_it_could_be(foredraft: Command, tmp_path: Path) -> None:
    other_programs.ollama(tmp_path / "ollama", "registry.ollama.ai/someone/writer/3b", b"GGUF other")
    ran = foredraft("run", "-m", "someone/writer", "Hello")
    assert ran.code == 2
    assert "could be any of 2 models: someone/writer:1b, someone/writer:3b." in ran.err
