"""Blocks as llama.cpp computes them are those of a forward in NumPy: positions, masks, all kinds' parts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dflash_reference
import gguf_dflash
import gguf_factory
from foredraft.backends.llamacpp import BACKEND
from foredraft.config import ModelOptions
from foredraft.protocols import Head, Model
from foredraft.types import Features, HeadRows
from head_cases import rows, states
from model_cases import text_tokens

VOCABULARY, CONTEXT = 384, 256
TEXT = text_tokens(40)
FULL = "f32"
KINDS: dict[str, dict[str, Any]] = {
    "plain": {"depth": 3},
    "one-group": {"kv_heads": 1, "heads": 2},
    "tied": {"tied": True},
    "reduced": {"chosen": range(10, 200)},
    "causal": {"causal": True},
    "windows": {"window": 5, "depth": 3},
    "sections": {"sections": True},
    "one-layer-read": {"layers": (3,)},
    "nine-layers-read": {"layers": range(9)},
    "pair": {"block": 2},
    "long": {"block": 64},
    "markov": {"kind": "markov"},
    "markov-after": {"kind": "markov", "after": True},
    "markov-confident": {"kind": "markov", "confidence": True},
    "markov-reduced": {"kind": "markov", "chosen": range(10, 200)},
    "selector": {"kind": "selector"},
    "selector-windows": {"kind": "selector", "window": 4, "depth": 3},
    "selector-reduced": {"kind": "selector", "chosen": range(10, 200)},
}

Case = tuple[Head, dflash_reference.Reference, Features]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("dflash")


@pytest.fixture(scope="module")
def target(folder: Path) -> Path:
    return gguf_factory.tiny_llama(folder / "t.gguf", vocab=VOCABULARY, layers=10, mixing=0.5)


def opened(target: Path, head: Path) -> tuple[Model, Head]:
    options = ModelOptions(
        context_length=CONTEXT,
        sequences=3,
        threads=1,
        gpu_layers=0,
        kv_type=FULL,
        watch=BACKEND.features_for(target, head),
        probe=False,
        cache_dir=target.parent,
    )
    model = BACKEND.load(target, options)
    return model, model.load_head(head, sequences=3)


@pytest.fixture(params=KINDS)
def case(request: pytest.FixtureRequest, folder: Path, target: Path) -> Iterator[Case]:
    path = folder / f"{request.param}.gguf"
    gguf_dflash.tiny_dflash(path, vocab=VOCABULARY, **KINDS[request.param])
    model, head = opened(target, path)
    yield head, dflash_reference.Reference(path, target), states(model, TEXT)
    model.close()


def near(found: np.ndarray, expected: np.ndarray) -> bool:
    finite = np.isfinite(expected)
    return np.array_equal(finite, np.isfinite(found)) and np.allclose(
        found[finite], expected[finite], rtol=0.0, atol=2e-2
    )


def test_blocks_of_all_sizes_after_texts_of_all_lengths(case: Case) -> None:
    head, reference, features = case
    for length, count in ((1, 1), (2, head.block), (12, min(3, head.block)), (39, 1), (39, head.block)):
        found = head.forward([rows(0, TEXT, features, 1, length + 1, count)])
        assert near(found, reference.block(features[:length], 0, TEXT[length], count)), (length, count)
        head.release(0)


def test_blocks_after_blocks_and_after_cut_texts(case: Case) -> None:
    head, reference, features = case
    count, end = head.block, 1
    for more in (9, 1, 2, 16, 8):
        found = head.forward([rows(0, TEXT, features, end, end + more, count)])
        end += more
        assert near(found, reference.block(features[: end - 1], 0, TEXT[end - 1], count)), end
    other = TEXT[::-1]
    head.truncate(0, 20)
    found = head.forward([HeadRows(0, 20, other[20:22], features[19:21], count)])
    assert near(found, reference.block(features[:21], 0, other[21], count))


def test_a_text_without_its_beginning(case: Case) -> None:
    head, reference, features = case
    found = head.forward([rows(0, TEXT, features, 18, 31, head.block)])
    assert near(found, reference.block(features[17:30], 17, TEXT[30], head.block))


def test_blocks_of_several_texts_at_once(case: Case) -> None:
    head, reference, features = case
    batch, expected = [], []
    for seq, length, count in ((2, 20, head.block), (0, 7, 1), (1, 33, head.block)):
        batch.append(rows(seq, TEXT, features, 1, length + 1, count))
        expected.append(reference.block(features[:length], 0, TEXT[length], count))
    assert near(head.forward(batch), np.concatenate(expected))
