"""What a model's files say of it, without loading it: for lists of models, and the choice of drafts."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from foredraft.errors import ModelFormatError
from foredraft.library.recommended import recommended_in_folder, recommended_in_gguf
from foredraft.library.repository import CONFIG, read_json, repository_of, weight_files
from foredraft.library.safetensors_file import read_safetensors
from foredraft.library.split import model_files

TOKENIZER = "tokenizer.json"

_RECURRENT = (".ssm.", ".wkv.", ".shortconv.", ".time_mix")
"""Parts of keys in the headers of models whose layers keep a state in place of a cache."""

_RECURRENT_CONFIG = (
    "state_size",
    "ssm_cfg",
    "mamba_d_state",
    "linear_conv_kernel_dim",
    "conv_L_cache",
    "layers_block_type",
)
"""Their keys in configurations of transformers."""

_NO_TEXT_BACK = frozenset({"", "bert", "t5", "none", "no_vocab"})
"""Kinds of tokenizers in GGUF files that do not give back the text they were given."""

_NORMALIZING = ("NFKC", "NFKD", "NFD", "Lowercase", "BertNormalizer", "StripAccents", "Strip", "Nmt")
"""Parts of a `tokenizer.json` after which the text is another one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """A model's files in figures; counts are 0 and names empty where they do not say.

    `vocab_hash` is that of `ModelInfo`, "" without a vocabulary. `gives_text_back`: whether its tokenizer
    can reproduce any text, so that drafts can be translated. `recurrent`: whether tokens cannot be taken
    back from its cache. `weights`: whether there are any.
    """

    architecture: str
    quantization: str
    parameters: int
    size_bytes: int
    trained_context: int
    vocab_hash: str
    gives_text_back: bool
    recurrent: bool
    weights: bool
    recommended: Mapping[str, float] = field(default_factory=dict)


def facts_of(path: Path) -> ModelFacts:
    """The facts of a model found by `library.resolve`. Files that have not changed are not read again.

    Raises ModelError, MissingDependencyError, OSError.
    """
    folder = repository_of(path)
    files = model_files(path) if folder is None else (folder / CONFIG, *weight_files(folder))
    stamps = tuple((file.stat().st_mtime_ns, file.stat().st_size) for file in files if file.is_file())
    return _read(path, folder, stamps)


@lru_cache(maxsize=512)
def _read(path: Path, folder: Path | None, _stamps: tuple[object, ...]) -> ModelFacts:
    return _of_gguf(path) if folder is None else _of_folder(folder)


def _of_gguf(path: Path) -> ModelFacts:
    from foredraft.backends.llamacpp.gguf_file import read_gguf
    from foredraft.backends.llamacpp.gguf_native import vocabulary_hash_in

    summary = read_gguf(path)

    def text(key: str) -> str | None:
        value = summary.metadata.get(key)
        return None if value is None else str(value)

    return ModelFacts(
        architecture=summary.architecture,
        quantization=summary.file_type,
        parameters=summary.parameters,
        size_bytes=summary.size_bytes,
        trained_context=summary.context_length,
        vocab_hash=vocabulary_hash_in(summary.files[0]),
        gives_text_back=summary.tokenizer not in _NO_TEXT_BACK,
        recurrent=any(part in key for key in summary.metadata for part in _RECURRENT),
        weights=not summary.is_vocab_only,
        recommended=recommended_in_gguf(text),
    )


def _of_folder(folder: Path) -> ModelFacts:
    summary = read_safetensors(folder)
    text = summary.config.get("text_config")
    keys = {*summary.config, *(text if isinstance(text, dict) else ())}
    tokenizer = read_json(folder / TOKENIZER) if (folder / TOKENIZER).is_file() else {}
    normalizer = json.dumps(tokenizer.get("normalizer"))
    return ModelFacts(
        architecture=summary.architecture,
        quantization=summary.file_type,
        parameters=summary.parameters,
        size_bytes=summary.size_bytes,
        trained_context=summary.context_length,
        vocab_hash=_vocabulary_hash(tokenizer, summary.vocab_size),
        gives_text_back=bool(tokenizer) and not any(f'"{kind}"' in normalizer for kind in _NORMALIZING),
        recurrent=bool(keys.intersection(_RECURRENT_CONFIG)),
        weights=bool(summary.tensors),
        recommended=recommended_in_folder(folder),
    )


def _vocabulary_hash(tokenizer: Mapping[str, Any], size: int) -> str:
    """As the backend for safetensors has it of the loaded model: ids without a token count, too. Raises
    ModelFormatError.
    """
    try:
        tokens = _tokens(tokenizer)
    except (TypeError, KeyError, ValueError, AttributeError, IndexError):
        raise ModelFormatError(f"{TOKENIZER} is damaged.", hint="Pull the repository again.") from None
    digest = hashlib.sha256()
    for token in range(size):
        digest.update(tokens.get(token, f"[PAD{token}]").encode("utf-8", "surrogatepass"))
        digest.update(b"\0")
    return digest.hexdigest()[:16] if tokens and size else ""


def _tokens(tokenizer: Mapping[str, Any]) -> dict[int, str]:
    """The token of each id."""
    vocabulary = (tokenizer.get("model") or {}).get("vocab") or {}
    if isinstance(vocabulary, list):  # of a unigram model: (token, score)
        tokens = {number: str(entry[0]) for number, entry in enumerate(vocabulary)}
    else:
        tokens = {int(number): str(token) for token, number in vocabulary.items()}
    return tokens | {int(one["id"]): str(one["content"]) for one in tokenizer.get("added_tokens") or ()}
