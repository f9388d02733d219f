"""What says that it is a head."""

from __future__ import annotations

from pathlib import Path

import pytest

import gguf_factory
import gguf_heads
import torch_factory
import torch_heads
from foredraft.cli.head_files import is_head
from foredraft.library.head_kinds import kind_of


@pytest.mark.parametrize(
    ("config", "kind"),
    [
        ({"architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama"}, "eagle3"),
        ({"architectures": ["Eagle3DraftModel"], "speculators_model_type": "eagle3"}, "eagle3"),
        ({"speculators_model_type": "eagle3"}, "eagle3"),
        ({"architectures": ["DFlashDraftModel"], "model_type": "qwen3"}, "dflash"),
        ({"architectures": ["LlamaForCausalLM"], "model_type": "llama"}, ""),
        ({"architectures": "LlamaForCausalLMEagle3"}, ""),
        ({}, ""),
    ],
)
def test_the_kind_of_a_configuration(config: dict[str, object], kind: str) -> None:
    assert kind_of(config) == kind


def test_files_and_folders_of_heads(tmp_path: Path) -> None:
    tensors = torch_heads.eagle3_tensors()
    assert is_head(gguf_heads.tiny_eagle3(tmp_path / "a.gguf"))
    for name in ("eagle3", "dflash", "gemma4-assistant"):
        assert is_head(gguf_factory.unknown_architecture(tmp_path / f"{name}.gguf", architecture=name))
    assert is_head(torch_heads.write_specforge(tmp_path / "specforge", tensors))
    assert is_head(torch_heads.write_speculators(tmp_path / "speculators", tensors))
    assert not is_head(gguf_factory.tiny_llama(tmp_path / "model.gguf"))
    assert not is_head(torch_factory.make_tiny_llama(tmp_path / "model"))
    assert not is_head(tmp_path / "nothing")
