"""Metadata of a folder of safetensors, read from its configuration and headers without loading the model.

The format: eight bytes with the length of a JSON header, the header (type, shape and position of each
tensor), the data. https://huggingface.co/docs/safetensors
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from foredraft.errors import ModelFormatError, ModelNotFoundError
from foredraft.library.repository import CONFIG, LARGEST_JSON, folder_name, read_json, weight_files
from foredraft.library.type_share import TypeShare, type_shares

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_LENGTH = 8
_LARGEST_HEADER = LARGEST_JSON
"""The format's own limit is 100 MB, which take several GB in memory."""
_TEMPLATES = ("chat_template.jinja", "chat_template.json")


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A stored tensor. `type` is the format's name for its type ("BF16")."""

    name: str
    type: str
    shape: tuple[int, ...]
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SafetensorsSummary:
    """The configuration and headers of a folder; missing counts are 0, missing names empty.

    `architecture` is transformers' `model_type`, `classes` its classes; `quantization` maps types to their
    share, largest first; `config` is the whole configuration. `size_bytes` is the total of all files with
    weights.
    """

    path: Path
    files: tuple[Path, ...]
    architecture: str
    classes: tuple[str, ...]
    parameters: int
    context_length: int
    block_count: int
    embedding_length: int
    head_count: int
    kv_head_count: int
    vocab_size: int
    tokenizer: str
    has_chat_template: bool
    quantization: Mapping[str, TypeShare]
    tensors: tuple[StoredTensor, ...]
    config: Mapping[str, Any]
    size_bytes: int

    @property
    def name(self) -> str:
        return folder_name(self.path)

    @property
    def file_type(self) -> str:
        """The type of the largest share."""
        return next(iter(self.quantization), "")


def read_safetensors(folder: Path) -> SafetensorsSummary:
    """Summarise a folder.

    Raises ModelNotFoundError if a file is missing, ModelFormatError if one is damaged.
    """
    files = weight_files(folder)
    missing = [file.name for file in files if not file.is_file()]
    if missing:
        raise ModelNotFoundError(
            f"{folder} is incomplete: {missing[0]} is missing.", hint="Pull it again to complete it."
        )
    config = read_json(folder / CONFIG)
    nested = config.get("text_config")
    text = nested if isinstance(nested, dict) else config  # of multimodal models
    tensors = tuple(tensor for file in files for tensor in _tensors(file))
    heads = _count(text, "num_attention_heads", "n_head")
    classes = config.get("architectures")
    return SafetensorsSummary(
        path=folder,
        files=files,
        architecture=_text(config, "model_type"),
        classes=tuple(map(str, classes)) if isinstance(classes, list) else (),
        parameters=sum(math.prod(tensor.shape) for tensor in tensors),
        context_length=_count(text, "max_position_embeddings", "n_positions"),
        block_count=_count(text, "num_hidden_layers", "n_layer"),
        embedding_length=_count(text, "hidden_size", "n_embd"),
        head_count=heads,
        kv_head_count=_count(text, "num_key_value_heads") or heads,
        vocab_size=_count(text, "vocab_size"),
        tokenizer=_text(_tokenizer(folder), "tokenizer_class"),
        has_chat_template=any((folder / name).is_file() for name in _TEMPLATES)
        or bool(_tokenizer(folder).get("chat_template")),
        quantization=type_shares((tensor.type, tensor.size_bytes) for tensor in tensors),
        tensors=tensors,
        config=config,
        size_bytes=sum(file.stat().st_size for file in files),
    )


def _tokenizer(folder: Path) -> dict[str, Any]:
    path = folder / "tokenizer_config.json"
    return read_json(path) if path.is_file() else {}


def _tensors(path: Path) -> list[StoredTensor]:
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(_LENGTH), "little")
        if not 2 <= length <= min(_LARGEST_HEADER, size - _LENGTH):
            raise ModelFormatError(f"{path} is not a safetensors file.", hint="Pull the repository again.")
        header = file.read(length)
    try:
        entries = {name: entry for name, entry in json.loads(header).items() if name != "__metadata__"}
        ends = [int(entry["data_offsets"][1]) for entry in entries.values()]
        found = [_tensor(name, entry) for name, entry in entries.items()]
    except (ValueError, TypeError, LookupError, AttributeError, OverflowError, RecursionError):
        raise ModelFormatError(
            f"{path} has a damaged header: it is not a safetensors file.", hint="Pull the repository again."
        ) from None
    if size < _LENGTH + length + max(ends, default=0):
        raise ModelFormatError(f"{path} is truncated.", hint="Pull the repository again.")
    return found


def _tensor(name: str, entry: Mapping[str, Any]) -> StoredTensor:
    start, end = entry["data_offsets"]
    return StoredTensor(name, str(entry["dtype"]), tuple(map(int, entry["shape"])), int(end) - int(start))


def _count(values: Mapping[str, Any], *keys: str) -> int:
    """The first existing key, which has different names in different architectures."""
    found = (values.get(key) for key in keys)
    return next((value for value in found if isinstance(value, int)), 0)


def _text(values: Mapping[str, Any], key: str) -> str:
    value = values.get(key)
    return value if isinstance(value, str) else ""
