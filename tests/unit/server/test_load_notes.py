"""What had to be left out when a model was loaded is in the server's log, not only in the answers."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

import pytest

import gguf_factory
import gguf_heads
from foredraft.server.run import loader
from foredraft.server.settings import ModelSettings, ServerSettings


@pytest.mark.parametrize(("times", "noted"), [(4, False), (8, True)])
def test_positions_that_are_scaled_very_far_are_in_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, times: int, noted: bool
) -> None:
    path = gguf_factory.tiny_llama(tmp_path / "tiny.gguf", ctx_train=64)
    model = ModelSettings(
        path=str(path), threads=1, gpu_layers=0, context_length=64 * times, rope_scaling="yarn"
    )
    caplog.set_level(logging.INFO)
    loader(ServerSettings(models={"tiny": model}, cache_dir=tmp_path / "cache"))(model).close()
    said = "Tiny Llama: YaRN is good for about 4 times"
    assert [record.levelname for record in caplog.records if said in record.message] == ["INFO"] * noted


def test_a_head_that_cannot_be_used_is_in_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = gguf_factory.tiny_llama(tmp_path / "tiny.gguf", layers=4)
    model = ModelSettings(path=str(path), threads=1, gpu_layers=0, context_length=256)
    settings = ServerSettings(models={"tiny": model}, cache_dir=tmp_path / "cache")
    caplog.set_level(logging.INFO)
    loader(settings)(model).close()
    assert not [record for record in caplog.records if "cannot be used" in record.message]
    head = gguf_heads.tiny_eagle3(tmp_path / "wide.gguf", embd=128)
    loader(settings)(replace(model, speculate=f"auto;heads:model={head}")).close()
    [said] = [record.message for record in caplog.records if "cannot be used" in record.message]
    assert said.startswith("Tiny Llama: drafter heads")
    assert "hidden states of 128 numbers" in said
