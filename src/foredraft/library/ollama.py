"""Ollama's models: `manifests/REGISTRY/NAMESPACE/MODEL/TAG` names the `blobs/sha256-…` that is the GGUF.

A manifest is the JSON of an OCI image, and a model's layers are distinguished by their media types. Models
with an adapter are left out, because they would be different models without it.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from foredraft.library.regular import is_there, read_start
from foredraft.library.stored import StoredModel, describe_gguf
from foredraft.library.survey import ReportSkipped, Survey, no_report

_MANIFESTS, _BLOBS = "manifests", "blobs"
_REGISTRY, _NAMESPACE = "registry.ollama.ai", "library"
"""Defaults that Ollama omits from a model's name."""

_TYPE = "application/vnd.ollama.image."
_DIGEST = re.compile(r"sha256[:-]([0-9a-f]{64})")
_LARGEST_JSON = 1_000_000


def ollama_models(folder: Path, report: ReportSkipped = no_report) -> list[StoredModel]:
    """The GGUF models in a folder of Ollama (`~/.ollama/models`)."""
    found: list[StoredModel] = []
    for name, path in _manifests(folder, report):
        try:
            found.append(_model(folder, path, name))
        except (OSError, ValueError) as error:
            report(f"Ollama's {name} was left out: {getattr(error, 'strerror', None) or error}.")
    return found


def _manifests(folder: Path, report: ReportSkipped = no_report) -> Iterator[tuple[str, Path]]:
    """(Ollama's name, manifest) of each model."""
    manifests = folder / _MANIFESTS
    for path in Survey(folder, report).files(manifests, deepest=3):
        parts = path.relative_to(manifests).parts
        if len(parts) == 4 and is_there(path):
            yield _name(*parts), path


def ollama_name(blob: Path) -> str:
    """Ollama's name for the model of a blob; empty if the file is not one of its models."""
    if not _is_blob(blob):
        return ""
    named = (model.label for model in ollama_models(blob.parent.parent) if model.path.name == blob.name)
    return next(named, "")


def projector_of(blob: Path) -> Path | None:
    """The vision file (mmproj) that a manifest names beside the model of a blob, if it is there."""
    if not _is_blob(blob):
        return None
    folder = blob.parent.parent
    for _, manifest in _manifests(folder):
        with suppress(OSError, ValueError):
            layers = _layers(_read(manifest))
            if any(_blob(folder, layer) == blob for layer in layers["model"]):
                found = [_blob(folder, layer) for layer in layers["projector"]]
                if found and is_there(found[0]):
                    return found[0]
    return None


def _is_blob(path: Path) -> bool:
    return path.parent.name == _BLOBS and _DIGEST.fullmatch(path.name) is not None


def _name(registry: str, namespace: str, model: str, tag: str) -> str:
    """The name as printed by `ollama list`."""
    prefix = "" if registry == _REGISTRY else f"{registry}/"
    if prefix or namespace != _NAMESPACE:
        prefix += f"{namespace}/"
    return f"{prefix}{model}:{tag}"


def _model(folder: Path, manifest: Path, name: str) -> StoredModel:
    """Raises ValueError for a damaged manifest or a model that cannot run here; OSError."""
    values = _read(manifest)
    layers = _layers(values)
    weights = layers["model"]
    if layers["adapter"]:
        raise ValueError("it has an adapter, which is not supported")
    if len(weights) != 1:
        raise ValueError("its weights are not a single GGUF file")
    blob = _blob(folder, weights[0])
    model = describe_gguf(blob, "ollama")
    size = weights[0].get("size", model.size_bytes)
    complete = model.complete and size == model.size_bytes
    return replace(model, label=name, quantization=_quantization(folder, values), complete=complete)


def _layers(manifest: dict[str, Any]) -> defaultdict[str, list[dict[str, Any]]]:
    """The layers of each kind."""
    listed = manifest.get("layers")
    found: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)
    for layer in listed if isinstance(listed, list) else ():
        if isinstance(layer, dict):
            found[str(layer.get("mediaType")).removeprefix(_TYPE)].append(layer)
    return found


def _quantization(folder: Path, manifest: dict[str, Any]) -> str:
    """The quantisation in the model's configuration; empty if there is none."""
    try:
        return str(_read(_blob(folder, manifest.get("config"))).get("file_type") or "").upper()
    except (OSError, ValueError):
        return ""


def _blob(folder: Path, layer: object) -> Path:
    """The file of a layer, which may be missing. Raises ValueError without a valid digest."""
    digest = layer.get("digest") if isinstance(layer, dict) else None
    match = _DIGEST.fullmatch(digest) if isinstance(digest, str) else None
    if match is None:
        raise ValueError("its manifest is damaged")
    return folder / _BLOBS / f"sha256-{match[1]}"


def _read(path: Path) -> dict[str, Any]:
    """Read a small JSON object. Raises ValueError, OSError."""
    text = read_start(path, _LARGEST_JSON + 1)
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):  # also if it is truncated
        value = None
    if not isinstance(value, dict):
        raise ValueError("its manifest is damaged")
    return value
