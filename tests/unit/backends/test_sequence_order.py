"""llama.cpp computes sequences of one forward together only where their numbers ascend."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gguf_factory
from foredraft.backends.llamacpp import BACKEND
from foredraft.backends.llamacpp.binding import lib
from foredraft.config import ModelOptions
from foredraft.protocols import Model
from foredraft.types import Rows

SEQUENCES = 4
PROMPTS = [[7, 8], [20, 21, 22], [33], [40, 41, 42, 43]]
NEXT = [[50], [60, 61, 62], [70], [80, 81]]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return gguf_factory.tiny_llama(tmp_path_factory.mktemp("gguf") / "tiny.gguf", weight_type="q8_0")


def load(path: Path) -> Model:
    return BACKEND.load(path, ModelOptions(threads=1, gpu_layers=0, sequences=SEQUENCES, probe=False))


def forward(model: Model, order: Sequence[int], logits: Sequence[int]) -> list[Any]:
    """The logits of each sequence's next rows, when the batch names the sequences in `order`."""
    for seq, prompt in enumerate(PROMPTS):
        model.release(seq)
        model.forward([Rows(seq, 0, prompt, 0)])
    batch = [Rows(seq, len(PROMPTS[seq]), NEXT[seq], logits[seq]) for seq in order]
    rows = model.forward(batch).copy()
    assert len(rows) == sum(logits[seq] for seq in order)
    ends = np.cumsum([logits[seq] for seq in order])
    parts = dict(zip(order, np.split(rows, ends[:-1]), strict=True))
    return [parts[seq] for seq in range(SEQUENCES)]


@pytest.mark.parametrize("order", [(3, 2, 1, 0), (1, 3, 0, 2), (2, 0, 3, 1)])
@pytest.mark.parametrize("logits", [(1, 3, 1, 2), (1, 1, 0, 2), (0, 2, 1, 0)])
def test_rows_come_back_in_the_order_of_the_batch(
    path: Path, order: tuple[int, ...], logits: tuple[int, ...]
) -> None:
    model = load(path)
    try:
        ascending, shuffled = forward(model, range(SEQUENCES), logits), forward(model, order, logits)
        for seq in range(SEQUENCES):
            assert np.array_equal(shuffled[seq], ascending[seq]), seq
    finally:
        model.close()


def test_sequences_reach_llama_cpp_in_ascending_order(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Four sequences in descending order would be four passes over the weights in place of one."""
    seen: list[list[int]] = []
    decode = lib.llama_decode

    def watching(context: Any, batch: Any) -> int:
        seen.append([batch.seq_id[i][0] for i in range(batch.n_tokens)])
        return int(decode(context, batch))

    model = load(path)
    try:
        monkeypatch.setattr(lib, "llama_decode", watching)
        forward(model, (3, 2, 1, 0), (1, 1, 1, 1))
        assert seen[-1] == [0, 1, 1, 1, 2, 3, 3]
    finally:
        model.close()
