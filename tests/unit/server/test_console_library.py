"""The console's look at the models on this computer."""

from __future__ import annotations

from pathlib import Path

import pytest

import gguf_factory
from foredraft.config import OtherPrograms
from foredraft.server.console.library import Library
from foredraft.server.settings import ModelSettings, ServerSettings


def test_which_models_use_a_file_is_told_without_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "models" / "owner" / "Tiny-GGUF"
    folder.mkdir(parents=True)
    for name in ("Tiny-Q4_0.gguf", "Tiny-Q8_0.gguf"):
        gguf_factory.tiny_llama(folder / name)
    models = {
        "one": ModelSettings(path="owner/Tiny-GGUF:Q4_0"),
        "two": ModelSettings(path=str(folder / "Tiny-Q4_0.gguf")),
        "away": ModelSettings(path="owner/nothing"),
    }
    settings = ServerSettings(cache_dir=tmp_path, models=models)
    look = Library(OtherPrograms()).look(settings)
    monkeypatch.setattr(Path, "resolve", lambda *_: pytest.fail("a page that is open asks every second"))
    used = {model.path.name: look.served_as(model, settings) for model in look.stored}
    assert used["Tiny-Q4_0.gguf"] == ["one", "two"]
    assert used["Tiny-Q8_0.gguf"] == []
