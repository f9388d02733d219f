"""The exactness probe of a model that sees compares text behind an image, too."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

import gguf_vision
import seeing_factory
from foredraft.backends.comparison import compare
from foredraft.backends.llamacpp import kernels
from foredraft.backends.llamacpp.model import UNTILED_ROWS, LlamaCppModel
from foredraft.backends.llamacpp.vision import LlamaCppVision
from foredraft.config import ModelOptions
from foredraft.protocols import Model
from foredraft.registry import backend_for
from foredraft.types import Logits, Rows

CASES: dict[str, Callable[[Path], Path]] = {
    "qwen2vl": gguf_vision.qwen2vl,
    "gemma3": gguf_vision.gemma3,
    "torch-qwen2_vl": lambda folder: seeing_factory.make_seeing_model(folder, "qwen2_vl"),
    "torch-gemma3": lambda folder: seeing_factory.make_seeing_model(folder, "gemma3"),
}


def load(path: Path, folder: Path, *, probe: bool = True) -> Model:
    options = ModelOptions(
        context_length=256, sequences=2, threads=1, gpu_layers=0, cache_dir=folder, probe=probe
    )
    return backend_for(path).load(path, options)


@pytest.mark.parametrize("name", CASES)
def test_the_report_says_that_text_behind_an_image_was_compared(name: str, tmp_path: Path) -> None:
    model = load(CASES[name](tmp_path / "model"), tmp_path)
    try:
        able = model.capabilities
        assert able.batch_invariant or (kernels.in_use() is None and "torch" not in name)
        assert ", also behind an image)" in able.invariance_note
        assert not any(model.length(seq) for seq in range(able.sequences))
    finally:
        model.close()


def test_a_difference_behind_an_image_alone_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = load(gguf_vision.qwen2vl(tmp_path / "model"), tmp_path, probe=False)
    forward, sees = LlamaCppModel.forward, False

    def differing(self: LlamaCppModel, batch: Sequence[Rows]) -> Logits:
        nonlocal sees
        sees |= any(rows.images for rows in batch)
        sees &= all(rows.start > 0 or rows.images for rows in batch)
        logits = forward(self, batch)
        if sees and len(batch[0].tokens) == 4:
            logits = np.nextafter(logits, np.float32(np.inf))
        return logits

    monkeypatch.setattr(LlamaCppModel, "forward", differing)
    try:
        assert isinstance(model.vision, LlamaCppVision)
        plain = compare(model, enough=UNTILED_ROWS)
        assert not plain.behind_image
        assert not plain.differences
        found = compare(model, enough=UNTILED_ROWS, image=model.vision.blank())
        assert found.differences[0].rows == 4
        assert found.differences[0].passage == "prose behind an image"
    finally:
        model.close()
