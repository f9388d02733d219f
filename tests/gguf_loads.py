"""What a child process of a test does with a GGUF file, so that a crash is counted and ends no test run."""

from __future__ import annotations

import warnings
from contextlib import nullcontext
from functools import cache
from pathlib import Path

from foredraft.backends.llamacpp import BACKEND, trial
from foredraft.backends.llamacpp.quantize import quantize
from foredraft.config import ModelOptions
from foredraft.errors import ForedraftError
from foredraft.isolation.pool import ChildPool
from foredraft.types import Rows

LOADED = "loaded"


def load(path: str) -> str:
    """`LOADED`, or the error's exit code and message. Loaded models compute and are closed."""
    trial.start_children = lambda: nullcontext(_children())  # type: ignore[assignment]
    options = ModelOptions(threads=1, gpu_layers=0, sequences=2, batch=64, ubatch=64, probe=False)
    try:
        model = BACKEND.load(Path(path), options)
        try:
            tokens = [*model.tokenizer.encode("A word, ein Wörtchen, 字"), 0][: model.info.context_length]
            model.forward([Rows(0, 0, tokens, 1)])
        finally:
            model.close()
    except ForedraftError as error:
        return f"{error.exit_code}: {error.message}"
    return LOADED


def requantize(path: str) -> str:
    """The same for having its weights written in another type."""
    trial.start_children = lambda: nullcontext(_children())  # type: ignore[assignment]
    try:
        with warnings.catch_warnings():
            quantize(Path(path), Path(path).with_suffix(".out"), "q8_0", threads=1, force=True)
    except ForedraftError as error:
        return f"{error.exit_code}: {error.message}"
    return LOADED


@cache
def _children() -> ChildPool:
    """For the trials of all files: starting one takes longer than trying a small file."""
    return ChildPool(size=1, memory=trial.MEMORY)
