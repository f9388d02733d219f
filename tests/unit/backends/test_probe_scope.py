"""The exactness probe must not claim more than it compared."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import gguf_factory
from foredraft.backends.llamacpp import BACKEND
from foredraft.config import ModelOptions
from foredraft.types import Capabilities


@pytest.fixture(scope="module")
def long_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An exact model with room for all depths of the probe."""
    path = tmp_path_factory.mktemp("model") / "long.gguf"
    return gguf_factory.tiny_llama(path, ctx_train=2048, weight_type="q4_0")


def capabilities(path: Path, cache: Path | None, **options: int) -> Capabilities:
    model = BACKEND.load(path, ModelOptions(threads=1, cache_dir=cache, **options))  # type: ignore[arg-type]
    try:
        return model.capabilities
    finally:
        model.close()


def test_a_fresh_probe_compares_three_depths(long_model: Path) -> None:
    assert "8, 250 and 506" in capabilities(long_model, None, context_length=2048).invariance_note


def test_what_a_short_context_measured_is_not_claimed_for_a_long_one(
    long_model: Path, tmp_path: Path
) -> None:
    short = capabilities(long_model, tmp_path, context_length=256)
    assert "506" not in short.invariance_note
    assert "8, 250 and 506" in capabilities(long_model, tmp_path, context_length=2048).invariance_note


def test_what_one_sequence_measured_is_not_claimed_for_several(long_model: Path, tmp_path: Path) -> None:
    capabilities(long_model, tmp_path, context_length=256, sequences=1)
    before = len(list(tmp_path.rglob("*.json")))
    capabilities(long_model, tmp_path, context_length=256, sequences=2)
    assert len(list(tmp_path.rglob("*.json"))) == before + 1


@pytest.mark.parametrize("batch", [1, 4])
def test_no_more_rows_are_claimed_than_were_compared(long_model: Path, batch: int) -> None:
    able = capabilities(long_model, None, context_length=256, batch=batch)
    claimed = re.search(r"up to (\d+) rows", able.invariance_note)
    assert claimed is None or int(claimed[1]) <= batch
    assert able.max_rows <= batch
