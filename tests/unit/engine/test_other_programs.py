"""Models of other programs by name in `Engine.load`, as models and as draft models."""

from __future__ import annotations

from pathlib import Path

import pytest

import gguf_factory
import other_programs
from foredraft import Engine
from foredraft.config import OtherPrograms
from foredraft.errors import ModelNotFoundError


@pytest.fixture
def ollama(tmp_path: Path) -> OtherPrograms:
    """Ollama with one model."""
    content = gguf_factory.tiny_llama(tmp_path / "tiny.gguf").read_bytes()
    other_programs.ollama(tmp_path / "ollama", "registry.ollama.ai/library/tiny/1b", content)
    return OtherPrograms(ollama=(tmp_path / "ollama",))


def test_a_model_and_its_draft_model_by_ollamas_name(ollama: OtherPrograms) -> None:
    with Engine.load(
        "tiny:1b",
        speculate="draft-model:model=tiny:1b",
        other_programs=ollama,
        context_length=128,
        threads=1,
        gpu_layers=0,
    ) as engine:
        answer = engine.generate("Once", max_tokens=8, temperature=0)
        assert engine.notes == ()
        assert answer.speculation.drafters["draft-model"].drafted


def test_none_of_other_programs_where_none_is_named(ollama: OtherPrograms) -> None:
    with pytest.raises(ModelNotFoundError):
        Engine.load("tiny:1b", other_programs=OtherPrograms())
