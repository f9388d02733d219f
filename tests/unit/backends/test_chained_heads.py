"""Layers for multi-token prediction, one for each token ahead: which one computes what."""

from __future__ import annotations

from pathlib import Path

import pytest

import gguf_heads
import gguf_mimo
from foredraft.backends.llamacpp import BACKEND
from foredraft.config import ModelOptions
from foredraft.types import HeadRows, Rows

VOCABULARY, LAYERS = 384, 3
TEXT = [20, 30, 40, 50, 60, 70, 80]


@pytest.mark.parametrize("sequences", [1, 2])
def test_each_token_of_a_draft_is_of_the_next_layer(tmp_path: Path, sequences: int) -> None:
    path = gguf_mimo.tiny_mimo2(
        tmp_path / "chain.gguf", vocab=VOCABULARY, following=LAYERS, mixing=0.0, shifted=True
    )
    following, watch = gguf_heads.next_tokens(path), BACKEND.features_for(path, None)
    options = ModelOptions(threads=1, gpu_layers=0, probe=False, sequences=2, watch=watch)
    model = BACKEND.load(path, options)
    model.forward([Rows(0, 0, TEXT, 1)])
    features = model.features().copy()
    head = model.load_head(None, sequences=sequences)
    for length in (3, 4, 6):
        batch = [HeadRows(seq, 1, TEXT[1:length], features[: length - 1], 1) for seq in range(sequences)]
        tokens = [TEXT[length - 1]] * sequences
        for depth in range(5):
            drafted = [int(row.argmax()) for row in head.forward(batch)]
            shift = min(depth, LAYERS - 1)  # the last layer goes on for all further ones
            tokens = [(following[token] + shift) % VOCABULARY for token in tokens]
            assert drafted == tokens, f"token {depth} after {length}"
            batch = [HeadRows(seq, length + depth, tokens[:1], None, 1) for seq in range(sequences)]
        for seq in range(sequences):
            head.release(seq)
    model.close()
