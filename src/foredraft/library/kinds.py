"""What a model is for, as its files say: to generate, to embed, or to rerank."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from foredraft.embedding import ModelKind, Pooling
from foredraft.errors import ModelFormatError, UnsupportedModelError
from foredraft.library.repository import CONFIG, read_json

ENCODERS = frozenset(
    {
        "bert",
        "modern-bert",
        "nomic-bert",
        "nomic-bert-moe",
        "neo-bert",
        "jina-bert-v2",
        "jina-bert-v3",
        "eurobert",
        "gemma-embedding",
        "gemma-embedding2",
        "llama-embed",
        "t5encoder",
    }
)
"""Architectures of GGUF files that cannot generate."""

POOLING_TYPES: Mapping[int, Pooling] = {1: "mean", 2: "cls", 3: "last"}
RANK = 4
"""llama.cpp's numbers of poolings (`llama_pooling_type`)."""

MODULES = "modules.json"
"""The list of a sentence-transformers model's parts."""

_ENCODER_TYPES = frozenset(
    {
        "albert",
        "bert",
        "camembert",
        "deberta",
        "deberta-v2",
        "distilbert",
        "electra",
        "eurobert",
        "jina_embeddings_v3",
        "modernbert",
        "mpnet",
        "nomic_bert",
        "roberta",
        "xlm-roberta",
    }
)
"""`model_type` of transformers' models that cannot generate."""

_RERANKER = "ForSequenceClassification"


def kind_in_gguf(architecture: str, metadata: Mapping[str, Any]) -> ModelKind:
    """The kind of a GGUF file with these values in its header."""
    pooling = metadata.get(f"{architecture}.pooling_type", 0)
    if pooling == RANK:
        return "reranker"
    return "embedding" if pooling in POOLING_TYPES or architecture in ENCODERS else "generative"


def kind_in_folder(folder: Path) -> ModelKind:
    """The kind of a folder of safetensors. Raises ModelFormatError, OSError."""
    return kind_in_config(read_json(folder / CONFIG), modules=(folder / MODULES).is_file())


def kind_in_config(config: Mapping[str, Any], *, modules: bool) -> ModelKind:
    """The kind of a model with this configuration. `modules`: whether sentence-transformers wrote it."""
    classes = config.get("architectures")
    names = [str(name) for name in classes] if isinstance(classes, list) else []
    if any(name.endswith(_RERANKER) for name in names):
        return "reranker"
    return "embedding" if modules or config.get("model_type") in _ENCODER_TYPES else "generative"


def modules_of(folder: Path) -> list[tuple[str, Path]]:
    """(the class, the folder) of each part of a sentence-transformers model, in order; none if it is not one.
    Raises ModelFormatError, OSError.
    """
    file = folder / MODULES
    if not file.is_file():
        return []
    try:
        parts = [(str(part["type"]), str(part["path"])) for part in json.loads(file.read_text("utf-8"))]
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise ModelFormatError(f"{file} is damaged: {error}.", hint="Pull the repository again.") from None
    found = [(kind.rpartition(".")[2], (folder / path).resolve()) for kind, path in parts]
    for _, part in found:
        if not part.is_relative_to(folder.resolve()):
            raise ModelFormatError(f"{file} names {part}, which is not in the folder of the model.")
    return found


def only_embeds(name: str, kind: ModelKind) -> UnsupportedModelError:
    """The error for an embedding model or reranker where one that generates is wanted."""
    what = "a reranker, which scores texts" if kind == "reranker" else "an embedding model"
    path = "/v1/rerank" if kind == "reranker" else "/v1/embeddings"
    return UnsupportedModelError(
        f"{name} is {what}: it does not generate text.",
        hint=f"'foredraft serve' answers POST {path} with it.",
    )


def no_embedder(name: str) -> UnsupportedModelError:
    """The error for a model that generates where an embedding model is wanted."""
    return UnsupportedModelError(
        f"{name} generates text and is not an embedding model.",
        hint="Use an embedding model. Or name the same file once more in the settings, as another model with "
        'embeddings = "last": this one goes on generating.',
    )


def no_reranker(name: str) -> UnsupportedModelError:
    """The error for a model that is not a reranker where one is needed."""
    return UnsupportedModelError(
        f"{name} is not a reranker: it has no score for a query and a document.",
        hint="Use a model made for it, such as bge-reranker-v2-m3.",
    )
