"""What the tests of the command line share."""

from __future__ import annotations

from pathlib import Path

import pytest

import gguf_factory
from command_line import Command


@pytest.fixture
def foredraft(capsys: pytest.CaptureFixture[str]) -> Command:
    """The command, without a terminal."""
    return Command(capsys)


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that llama.cpp loads in milliseconds."""
    return gguf_factory.tiny_llama(tmp_path_factory.mktemp("models") / "tiny.gguf")
