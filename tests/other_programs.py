"""Model folders as Ollama, LM Studio and the Hub's own library leave them."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def put(path: Path, content: bytes = b"GGUF") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def ollama(folder: Path, name: str, content: bytes = b"GGUF", *, kinds: tuple[str, ...] = ("model",)) -> Path:
    """Adds `registry/namespace/model/tag`, with the same content in layers of these kinds; its blob."""
    digest = hashlib.sha256(content).hexdigest()
    config = json.dumps({"model_format": "gguf", "file_type": "Q4_K_M"}).encode()
    config_digest = hashlib.sha256(config).hexdigest()
    manifest: dict[str, Any] = {
        "schemaVersion": 2,
        "config": {"digest": f"sha256:{config_digest}", "size": len(config)},
        "layers": [
            {
                "mediaType": f"application/vnd.ollama.image.{kind}",
                "digest": f"sha256:{digest}",
                "size": len(content),
            }
            for kind in kinds
        ],
    }
    put(folder / "manifests" / name, json.dumps(manifest).encode())
    put(folder / "blobs" / f"sha256-{config_digest}", config)
    return put(folder / "blobs" / f"sha256-{digest}", content)


def cached(cache: Path, repository: str, files: dict[str, bytes], *, commit: str = COMMIT) -> Path:
    """Adds a commit of a repository to the cache of the Hub's library, as the current one; its snapshot."""
    folder = cache / f"models--{repository.replace('/', '--')}"
    snapshot = folder / "snapshots" / commit
    for name, content in files.items():
        blob = put(folder / "blobs" / hashlib.sha256(content).hexdigest(), content)
        link = snapshot / name
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(blob)
    put(folder / "refs" / "main", commit.encode())
    return snapshot


def llamacpp(cache: Path, repository: str, model: str, mmproj: str = "") -> Path:
    """Adds a repository's files and their manifest to llama.cpp's own cache; the model's file."""
    names = {"ggufFile": model} | ({"mmprojFile": mmproj} if mmproj else {})
    manifest = json.dumps({key: {"rfilename": name} for key, name in names.items()}).encode()
    put(cache / f"manifest={repository.replace('/', '=')}=latest.json", manifest)
    files = [put(cache / f"{repository}_{name}".replace("/", "_")) for name in names.values()]
    return files[0]
