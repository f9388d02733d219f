"""Small repositories of safetensors as bytes, with weights that mean nothing: to be pulled, not to be run."""

from __future__ import annotations

import json
import struct
from pathlib import Path

CONFIG = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "dtype": "bfloat16",
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 2,
    "max_position_embeddings": 512,
    "vocab_size": 300,
}


def safetensors(**tensors: tuple[int, ...]) -> bytes:
    """A file with a tensor of each name and shape, in BF16."""
    header, data = {}, b""
    for name, shape in tensors.items():
        size = 2
        for length in shape:
            size *= length
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [len(data), len(data) + size]}
        data += bytes(i * 7 % 251 for i in range(size))
    text = json.dumps({"__metadata__": {"format": "pt"}, **header}).encode()
    return struct.pack("<Q", len(text)) + text + data


def small_files() -> dict[str, bytes]:
    """What a model has besides its weights, and what must not be fetched."""
    return {
        "README.md": b"# A model",
        "config.json": json.dumps(CONFIG).encode(),
        "generation_config.json": b'{"eos_token_id": 2}',
        "tokenizer.json": b'{"version": "1.0"}',
        "tokenizer_config.json": b'{"tokenizer_class": "PreTrainedTokenizerFast"}',
        "chat_template.jinja": b"{{ messages }}",
        "modeling_evil.py": b"raise SystemExit",
        "pytorch_model.bin": b"\x80\x04pickle" * 300,
        "training_args.bin": b"\x80\x04pickle",
        "original/consolidated.safetensors": safetensors(x=(1000,)),
        "onnx/model.onnx": b"x" * 2000,
    }


FETCHED = {
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
}


def one_file() -> dict[str, bytes]:
    """A repository with its weights in one file."""
    return {**small_files(), "model.safetensors": safetensors(embedding=(300, 64), norm=(64,))}


SHARDS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")


def sharded() -> dict[str, bytes]:
    """A repository with its weights in two files."""
    places = {"embedding": SHARDS[0], "norm": SHARDS[0], "head": SHARDS[1]}
    index = {"metadata": {"total_size": 1}, "weight_map": places}
    return {
        **small_files(),
        "model.safetensors.index.json": json.dumps(index).encode(),
        SHARDS[0]: safetensors(embedding=(300, 64), norm=(64,)),
        SHARDS[1]: safetensors(head=(300, 64)),
    }


def write(folder: Path, files: dict[str, bytes]) -> Path:
    """Put the files into a folder."""
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return folder
