"""Key for KV cells that are valid in another process (`Capabilities.snapshot_key`)."""

from __future__ import annotations

import hashlib
from pathlib import Path

from foredraft.library.split import model_files


def snapshot_key(path: Path, file_hash: str, settings_key: str, *, context_length: int, layers: int) -> str:
    """Equal for two contexts only if both compute the same cells from the same tokens.

    `settings_key` has llama.cpp's version and build, the processor, device, threads, KV types and kernels.
    The context length affects how some models rotate positions (LongRoPE). `file_hash` is a sample of the
    first file, which may miss a small change of weights, so sizes and times of all the model's files are
    included.
    """
    files = [file.stat() for file in model_files(path) if file.exists()]
    facts = [(found.st_size, found.st_mtime_ns) for found in files]
    text = f"{file_hash}|{facts}|{settings_key}|{context_length}|{layers}"
    return hashlib.sha256(text.encode()).hexdigest()
