"""Ollama's models: `manifests/REGISTRY/NAMESPACE/MODEL/TAG` says which `blobs/sha256-…` is the GGUF.

A manifest is the JSON of an OCI image, a model's layers are told apart by their media types. What was built
with an adapter would be another model without it, and is left out.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

from foredraft.library.stored import StoredModel, describe_gguf
from foredraft.library.survey import Survey, Told, nobody

_MANIFESTS, _BLOBS = "manifests", "blobs"
_REGISTRY, _NAMESPACE = "registry.ollama.ai", "library"
"""Those that Ollama leaves out of a model's name."""

_TYPE = "application/vnd.ollama.image."
_DIGEST = re.compile(r"sha256[:-]([0-9a-f]{64})")
_LARGEST_JSON = 1_000_000


def ollama_models(folder: Path, told: Told = nobody) -> list[StoredModel]:
    """The models in a folder of Ollama's (`~/.ollama/models`) that are GGUF files."""
    manifests = folder / _MANIFESTS
    found: list[StoredModel] = []
    for path in Survey(folder, told).files(manifests, deepest=3):
        parts = path.relative_to(manifests).parts
        if len(parts) != 4 or not path.is_file():
            continue
        name = _name(*parts)
        try:
            found.append(_model(folder, path, name))
        except (OSError, ValueError) as error:
            told(f"Ollama's {name} was left out: {getattr(error, 'strerror', None) or error}.")
    return found


def ollama_name(blob: Path) -> str:
    """What Ollama calls the model of a blob; nothing where the file is none of its models."""
    if blob.parent.name != _BLOBS or not _DIGEST.fullmatch(blob.name):
        return ""
    named = (model.label for model in ollama_models(blob.parent.parent) if model.path.name == blob.name)
    return next(named, "")


def _name(registry: str, namespace: str, model: str, tag: str) -> str:
    """As `ollama list` prints it."""
    prefix = "" if registry == _REGISTRY else f"{registry}/"
    if prefix or namespace != _NAMESPACE:
        prefix += f"{namespace}/"
    return f"{prefix}{model}:{tag}"


def _model(folder: Path, manifest: Path, name: str) -> StoredModel:
    """Raises ValueError for a manifest that is damaged, or of what cannot be run here; OSError."""
    values = _read(manifest)
    listed = values.get("layers")
    layers = [layer for layer in listed if isinstance(layer, dict)] if isinstance(listed, list) else []
    weights = [layer for layer in layers if layer.get("mediaType") == f"{_TYPE}model"]
    if any(layer.get("mediaType") == f"{_TYPE}adapter" for layer in layers):
        raise ValueError("it has an adapter, which would be missing")
    if len(weights) != 1:
        raise ValueError("its weights are not one GGUF file here")
    blob = _blob(folder, weights[0])
    model = describe_gguf(blob, "ollama")
    size = weights[0].get("size", model.size_bytes)
    complete = model.complete and size == model.size_bytes
    return replace(model, label=name, quantization=_quantization(folder, values), complete=complete)


def _quantization(folder: Path, manifest: dict[str, Any]) -> str:
    """What the model's configuration says of it; nothing where there is none."""
    try:
        return str(_read(_blob(folder, manifest.get("config"))).get("file_type") or "").upper()
    except (OSError, ValueError):
        return ""


def _blob(folder: Path, layer: object) -> Path:
    """The file of a layer, which need not be there. Raises ValueError where no digest names it."""
    digest = layer.get("digest") if isinstance(layer, dict) else None
    match = _DIGEST.fullmatch(digest) if isinstance(digest, str) else None
    if match is None:
        raise ValueError("its manifest is damaged")
    return folder / _BLOBS / f"sha256-{match[1]}"


def _read(path: Path) -> dict[str, Any]:
    """A small object in JSON. Raises ValueError, OSError."""
    with path.open("rb") as file:
        text = file.read(_LARGEST_JSON + 1)
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):  # also where it is cut off
        value = None
    if not isinstance(value, dict):
        raise ValueError("its manifest is damaged")
    return value
