"""The model of a replay: a row answers by its own path, also in trees."""

from __future__ import annotations

import numpy as np
import pytest

from foredraft.bench.curves import Curve
from foredraft.bench.replay_model import LIKELIEST, ReplayModel
from foredraft.bench.trace import Trace, TraceSet
from foredraft.types import Rows

FLAT = Curve("flat", {1: 1.0, 64: 1.3})


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
