"""KV cells go from one process to the next only where both would compute the same ones."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import gguf_factory
from foredraft.backends.llamacpp.loading import load_model
from foredraft.config import ModelOptions
from foredraft.library.split import model_files


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return gguf_factory.tiny_llama(tmp_path / "tiny.gguf")


def key(path: Path, **options: Any) -> str:
    chosen = {"context_length": 64, "threads": 1, "gpu_layers": 0, "probe": False, **options}
    model = load_model(path, ModelOptions(**chosen))
    try:
        return model.capabilities.snapshot_key
    finally:
        model.close()


def test_the_same_file_and_settings_have_the_same_key(path: Path) -> None:
    assert key(path) == key(path) != ""


@pytest.mark.parametrize(
    "options",
    [
        {"context_length": 32},
        {"kv_type": "f16"},
        {"kv_type": "f16/bf16"},
        {"threads": 2},
        {"flash_attention": "on"},
        {"gpu_layers": 1},
        {"batch": 16, "ubatch": 16},
    ],
)
def test_what_may_change_the_arithmetic_changes_the_key(path: Path, options: dict[str, Any]) -> None:
    assert key(path, **options) != key(path)


@pytest.mark.parametrize("options", [{"sequences": 2}, {"memory": "ram"}])
def test_the_rest_does_not(path: Path, options: dict[str, Any]) -> None:
    assert key(path, **options) == key(path)


def other_weights(path: Path) -> None:
    gguf_factory.tiny_llama(path, seed=5)


def touched(path: Path) -> None:
    os.utime(path, ns=(1, 1))


@pytest.mark.parametrize("change", [other_weights, touched])
def test_a_file_that_was_changed_has_another_key(path: Path, change: Callable[[Path], None]) -> None:
    before = key(path)
    change(path)
    assert key(path) != before


def test_every_part_of_a_split_model_counts(tmp_path: Path) -> None:
    first = gguf_factory.tiny_llama(tmp_path / "tiny.gguf", split_tensors=8)
    _, *later = model_files(first)
    before = key(first)
    touched(later[-1])
    assert key(first) != before
