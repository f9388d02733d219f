"""The hash that all quantisations of a model share, and other models do not."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

import gguf_factory
import gguf_parts
from foredraft.backends.llamacpp import BACKEND
from foredraft.backends.llamacpp.quantize import quantize


@pytest.fixture
def _trained_norms(monkeypatch: pytest.MonkeyPatch) -> None:
    """Norms of numbers that differ, as training leaves them."""

    def numbers(weights: gguf_parts.Weights, *shape: int) -> npt.NDArray[np.float32]:
        return weights.within(0.5, 1.5, *(shape or (weights.embd,)))

    monkeypatch.setattr(gguf_parts.Weights, "ones", numbers)


@pytest.mark.usefixtures("_trained_norms")
def test_quantisations_share_it(tmp_path: Path) -> None:
    full = gguf_factory.tiny_llama(tmp_path / "m-F32.gguf", seed=1)
    expected = BACKEND.weights_hash(full)
    assert len(expected) == 32
    for kind in ("q8_0", "q4_1", "f16"):
        made = tmp_path / f"m-{kind}.gguf"
        quantize(full, made, kind)
        assert BACKEND.weights_hash(made) == expected
    split = gguf_factory.tiny_llama(tmp_path / "split.gguf", seed=1, split_tensors=3)
    assert BACKEND.weights_hash(split) == expected


@pytest.mark.usefixtures("_trained_norms")
def test_other_models_have_another(tmp_path: Path) -> None:
    made = [
        gguf_factory.tiny_llama(tmp_path / "m1.gguf", seed=1),
        gguf_factory.tiny_llama(tmp_path / "m2.gguf", seed=2),
        gguf_factory.tiny_llama(tmp_path / "m3.gguf", seed=1, vocab=392),
        gguf_factory.tiny_llama(tmp_path / "m4.gguf", seed=1, layers=1),
    ]
    assert len({BACKEND.weights_hash(path) for path in made}) == len(made)


def test_a_model_that_was_not_trained_has_none(tmp_path: Path) -> None:
    assert BACKEND.weights_hash(gguf_factory.tiny_llama(tmp_path / "m.gguf")) == ""
