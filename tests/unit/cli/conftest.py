"""What the tests of the command line share."""

from __future__ import annotations

from pathlib import Path

import pytest

import gguf_factory
from command_line import Command
from foredraft.draft import trial
from foredraft.engine import loading


@pytest.fixture(autouse=True)
def _no_full_collections(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands collect garbage after loading (test_frozen_heap.py): half of the time of a test here."""
    monkeypatch.setattr(loading, "freeze_heap", lambda: None)


@pytest.fixture
def foredraft(capsys: pytest.CaptureFixture[str]) -> Command:
    """The command, without a terminal."""
    return Command(capsys)


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that llama.cpp loads in milliseconds."""
    return gguf_factory.tiny_llama(tmp_path_factory.mktemp("models") / "tiny.gguf")


@pytest.fixture
def quick_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drafts are tried out once, for tests that are not about that."""
    monkeypatch.setattr(trial, "TURNS", 1)
    monkeypatch.setattr(trial, "ROUNDS", 1)
    monkeypatch.setattr(trial, "ANSWERS", 4)
    monkeypatch.setattr(trial, "ANSWER_TOKENS", 8)
