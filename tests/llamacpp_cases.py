"""A tiny GGUF, opened as the llama.cpp backend's own model: for tests that look inside it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from foredraft.backends.llamacpp import BACKEND
from foredraft.backends.llamacpp.model import LlamaCppModel
from foredraft.config import ModelOptions


@contextmanager
def opened(path: Path, *, sequences: int) -> Iterator[LlamaCppModel]:
    """The model on one thread, without a probe."""
    model = BACKEND.load(path, ModelOptions(threads=1, gpu_layers=0, sequences=sequences, probe=False))
    assert isinstance(model, LlamaCppModel)
    try:
        yield model
    finally:
        model.close()
