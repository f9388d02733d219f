"""What a child process of a test does with a GGUF file, so that a crash is counted and ends no test run."""

from __future__ import annotations

import warnings
from contextlib import nullcontext
from dataclasses import replace
from functools import cache
from pathlib import Path

from foredraft.backends.llamacpp import BACKEND, trial
from foredraft.backends.llamacpp.quantize import quantize
from foredraft.config import ModelOptions
from foredraft.errors import ForedraftError
from foredraft.isolation.pool import ChildPool
from foredraft.types import HeadRows, Rows

LOADED = "loaded"
_OPTIONS = ModelOptions(threads=1, gpu_layers=0, sequences=2, batch=64, ubatch=64, probe=False)


def load(path: str) -> str:
    """`LOADED`, or the error's exit code and message. Loaded models compute and are closed."""
    trial.start_children = lambda: nullcontext(_children())  # type: ignore[assignment]
    try:
        model = BACKEND.load(Path(path), _OPTIONS)
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


def load_head(target: str, head: str) -> str:
    """The same for a head of a target, which computes rows."""
    trial.start_children = lambda: nullcontext(_children())  # type: ignore[assignment]
    try:
        watch = BACKEND.features_for(Path(target), Path(head))
        model = BACKEND.load(Path(target), replace(_OPTIONS, watch=watch))
        try:
            model.forward([Rows(0, 0, (20, 21, 22), 1)])
            opened = model.load_head(Path(head), sequences=2)
            opened.forward([HeadRows(1, 1, (21, 22), model.features()[:2], opened.block or 1)])
            if not opened.block:
                opened.forward([HeadRows(1, 3, (23,), None, 1)])
        finally:
            model.close()
    except ForedraftError as error:
        return f"{error.exit_code}: {error.message}"
    return LOADED


def load_watched(path: str, watch: list[str]) -> str:
    """The same for a model that is to return hidden states."""
    trial.start_children = lambda: nullcontext(_children())  # type: ignore[assignment]
    try:
        BACKEND.load(Path(path), replace(_OPTIONS, watch=tuple(watch))).close()
    except ForedraftError as error:
        return f"{error.exit_code}: {error.message}"
    return LOADED
