"""What is read from a folder of safetensors without loading it."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest

import torch_factory
from foredraft.errors import ModelFormatError, ModelNotFoundError
from foredraft.library.repository import LARGEST_JSON
from foredraft.library.safetensors_file import StoredTensor, read_safetensors
from foredraft.library.type_share import TypeShare
from safetensors_factory import CONFIG, SHARDS, one_file, safetensors, sharded, write


def test_a_model_in_several_files(tmp_path: Path) -> None:
    found = read_safetensors(write(tmp_path / "Many", sharded()))
    assert (found.name, found.architecture, found.classes) == ("Many", "llama", ("LlamaForCausalLM",))
    assert [file.name for file in found.files] == list(SHARDS)
    assert found.parameters == 2 * 300 * 64 + 64
    assert found.size_bytes == sum(len(sharded()[name]) for name in SHARDS)
    assert (found.context_length, found.block_count, found.embedding_length) == (512, 2, 64)
    assert (found.head_count, found.kv_head_count, found.vocab_size) == (4, 2, 300)
    assert (found.tokenizer, found.has_chat_template) == ("PreTrainedTokenizerFast", True)
    assert found.quantization == {"BF16": TypeShare(3, 2 * found.parameters)}
    assert found.tensors[1] == StoredTensor("norm", "BF16", (64,), 128)
    assert found.file_type == "BF16"


def test_what_transformers_writes(tmp_path: Path) -> None:
    for architecture in ("llama", "gpt2"):
        folder = torch_factory.make_model(tmp_path / architecture, architecture)
        found = read_safetensors(folder)
        assert (found.architecture, found.file_type) == (architecture, "F32")
        assert (found.embedding_length, found.head_count, found.block_count) == (64, 4, 2)
        assert found.context_length == torch_factory.CONTEXT
        assert found.has_chat_template
        assert 4 * found.parameters == sum(tensor.size_bytes for tensor in found.tensors)


def test_a_chat_template_may_be_in_three_places(tmp_path: Path) -> None:
    files = one_file()
    del files["chat_template.jinja"]
    folder = write(tmp_path, files)
    assert not read_safetensors(folder).has_chat_template
    (folder / "tokenizer_config.json").write_text('{"chat_template": "{{ messages }}"}')
    assert read_safetensors(folder).has_chat_template
    (folder / "tokenizer_config.json").unlink()
    (folder / "chat_template.json").write_text("{}")
    assert read_safetensors(folder).has_chat_template


def test_models_that_see_have_their_numbers_in_a_part(tmp_path: Path) -> None:
    config = {"model_type": "gemma3", "text_config": {"hidden_size": 32, "num_hidden_layers": 7}}
    found = read_safetensors(write(tmp_path, {**one_file(), "config.json": json.dumps(config).encode()}))
    assert (found.architecture, found.embedding_length, found.block_count) == ("gemma3", 32, 7)
    assert found.head_count == 0


def test_a_missing_file(tmp_path: Path) -> None:
    folder = write(tmp_path, sharded())
    (folder / SHARDS[1]).unlink()
    with pytest.raises(ModelNotFoundError, match=f"incomplete: {SHARDS[1]} is missing"):
        read_safetensors(folder)


GOOD = safetensors(x=(10,))
DEEP = b'{"x":' + b"[" * 200_000
ENDLESS = b'{"x":{"dtype":"F32","shape":[1e999],"data_offsets":[0,1e999]}}'
HUGE = struct.pack("<Q", 1 << 60)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "not a safetensors file"),
        (b"short", "not a safetensors file"),
        (HUGE + b"{}", "not a safetensors file"),
        (struct.pack("<Q", 2) + b"[]", "damaged header"),
        (struct.pack("<Q", 9) + b'{"x": 12}', "damaged header"),
        (struct.pack("<Q", 9) + b"{" * 9, "damaged header"),
        (struct.pack("<Q", 2) + b"\xff\xff", "damaged header"),
        (GOOD[:-1], "is truncated"),
        (struct.pack("<Q", len(DEEP)) + DEEP, "damaged header"),
        (struct.pack("<Q", len(ENDLESS)) + ENDLESS, "damaged header"),
    ],
)
def test_damaged_weights(tmp_path: Path, content: bytes, says: str) -> None:
    folder = write(tmp_path, {**one_file(), "model.safetensors": content})
    with pytest.raises(ModelFormatError, match=says):
        read_safetensors(folder)


@pytest.mark.parametrize("name", ["config.json", "tokenizer_config.json"])
def test_a_damaged_configuration(tmp_path: Path, name: str) -> None:
    for content in (b"{", b'{"a":' + b"[" * 200_000, b" " * (LARGEST_JSON + 1)):
        with pytest.raises(ModelFormatError, match=name):
            read_safetensors(write(tmp_path, {**one_file(), name: content}))


@pytest.mark.parametrize("value", [5, "x", {"a": 1}, None, [1]])
def test_classes_that_are_no_list(tmp_path: Path, value: object) -> None:
    config = json.dumps({**CONFIG, "architectures": value}).encode()
    found = read_safetensors(write(tmp_path, {**one_file(), "config.json": config}))
    assert found.classes == (("1",) if value == [1] else ())
