"""`foredraft draft find`: what could draft for a model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import gguf_factory
from foredraft.cli import run_command


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FOREDRAFT_CACHE", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("COLUMNS", "200")
    made = tmp_path / "models"
    made.mkdir()
    gguf_factory.tiny_llama(made / "target.gguf", layers=8, embd=128)
    return made


def test_the_best_comes_first_with_a_reason(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    gguf_factory.tiny_llama(folder / "small.gguf")
    gguf_factory.tiny_llama(folder / "words.gguf", vocab=400)
    assert run_command(["draft", "find", "target"]) == 0
    lines = capsys.readouterr().out.splitlines()
    order = [
        next(at for at, line in enumerate(lines) if line.startswith(name)) for name in ("small", "words")
    ]
    assert order == sorted(order)
    assert "the model's tokenizer" in lines[order[0]]
    assert "by translation" in lines[order[1]]
    assert run_command(["draft", "find", "target", "--json"]) == 0
    found = {one["name"]: one for one in json.loads(capsys.readouterr().out)}
    assert (found["small"]["fits"], found["target"]["code"]) == ("fits", "itself")


def test_nothing_that_could_draft(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["draft", "find", str(folder / "target.gguf")]) == 0
    assert "Nothing here could draft" in capsys.readouterr().out


def test_a_model_that_is_not_there(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["draft", "find", "none"]) == 2
    assert "There is no model 'none'" in capsys.readouterr().err
