"""Replays of trees: a row answers by its own path, and where rows are cheap trees gain."""

from __future__ import annotations

import random

import numpy as np
import pytest

from foredraft.bench.curves import Curve
from foredraft.bench.replay import replay
from foredraft.bench.replay_model import LIKELIEST, ReplayModel
from foredraft.bench.trace import Trace, TraceSet
from foredraft.types import Rows

FLAT = Curve("flat", {1: 1.0, 64: 1.3})
LINEAR = Curve("linear", {1: 1.0, 64: 64.0})


def traces(*pairs: tuple[list[int], list[int]], vocab_size: int = 40) -> TraceSet:
    found = [Trace(str(i), "c", tuple(prompt), tuple(output)) for i, (prompt, output) in enumerate(pairs)]
    return TraceSet("test", vocab_size, "h", (), found)


def test_a_row_of_a_tree_answers_by_its_path() -> None:
    model = ReplayModel(traces(([1, 2], [10, 11, 12, 13])), FLAT, trees=True)
    assert model.capabilities.trees
    model.forward([Rows(0, 0, (1, 2), 1)])
    tree = Rows(0, 2, (10, 30, 11, 12, 12), 5, parents=(-1, -1, 0, 2, 1))
    logits = model.forward([tree])
    answers = [int(row.argmax()) if row.max() == LIKELIEST else None for row in logits]
    assert answers == [11, None, 12, 13, None]
    assert model.seconds == pytest.approx(1e-3 * FLAT.v1_ms * FLAT.ratio(5))
    model.keep_path(0, 2, [0, 2])
    model.truncate(0, 4)
    assert int(model.forward([Rows(0, 4, (12,), 1)])[0].argmax()) == 13


def test_rows_after_the_end_of_the_record_say_nothing() -> None:
    model = ReplayModel(traces(([1], [10, 11])), FLAT, trees=True)
    model.forward([Rows(0, 0, (1,), 1)])
    logits = model.forward([Rows(0, 1, (10, 11, 12), 3, parents=(-1, 0, 1))])
    assert int(logits[0].argmax()) == 11
    assert not np.any(logits[1:])


def forked(count: int, seed: int) -> list[int]:
    """A text of phrases, after which one of two others follows by a coin."""
    rng = random.Random(seed)
    phrases = [[number, 20 + number, 30 + number] for number in range(6)]
    text, at = [], 0
    for _ in range(count):
        text += phrases[at]
        at = (2 * at + 1 + rng.randrange(2)) % 6
    return text


def test_trees_gain_where_rows_are_cheap_and_change_nothing_where_they_are_dear() -> None:
    recorded = traces(*((forked(30, seed), forked(60, seed + 100)) for seed in range(4)))
    chains, trees = (replay(recorded, FLAT, "auto", trees=able) for able in (False, True))
    assert trees.speedup > 1.1 * chains.speedup
    assert trees.worst.speedup >= chains.worst.speedup
    assert (chains.name, trees.name) == ("auto on flat", "auto on flat with trees")
    assert sum(row.tokens for row in trees.rows) == sum(row.tokens for row in chains.rows)
    dear, dearer = (replay(recorded, LINEAR, "auto", trees=able) for able in (False, True))
    assert dearer.speedup == pytest.approx(dear.speedup, abs=0.02)
