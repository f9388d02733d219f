"""What says that it is a head."""

from __future__ import annotations

from pathlib import Path

import pytest

import gguf_factory
import gguf_heads
import torch_factory
import torch_heads
from foredraft.backends import llamacpp
from foredraft.backends import torch as torch_backend
from foredraft.cli.head_files import is_head
from foredraft.config import ModelOptions
from foredraft.errors import UnsupportedModelError
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


def test_a_head_is_not_loaded_as_a_model(tmp_path: Path) -> None:
    file = gguf_heads.tiny_eagle3(tmp_path / "a.gguf")
    folder = torch_heads.write_specforge(tmp_path / "b", torch_heads.eagle3_tensors())
    for backend, path in ((llamacpp.BACKEND, file), (torch_backend.BACKEND, folder)):
        with pytest.raises(UnsupportedModelError, match=f"{path.name} is a head, .* not a model") as caught:
            backend.load(path, ModelOptions(threads=1, gpu_layers=0))
        assert "heads:model=" in (caught.value.hint or "")


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
