"""Rows in batches of fixed sizes: the padding is nobody's, and sizes that change bits are left out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import torch

from foredraft.backends.torch.batch import CELL, POSITION, SEQUENCE, Batch, make_batch
from foredraft.backends.torch.fixed_sizes import FixedSizeForward, FixedSizeModel, divided
from foredraft.backends.torch.kv import KVCache
from foredraft.testing import FakeModel
from foredraft.types import Rows

CPU = torch.device("cpu")
VOCABULARY = 300


@pytest.fixture(autouse=True)
def _as_a_model_computes() -> Iterator[None]:
    with torch.inference_mode():
        yield


class Forward:
    """Logits that are the token's, but for what `rounding` of the batch's size adds. `seen`: its batches."""

    def __init__(self, rounding: Callable[[int], float] = lambda _: 0.0, *, uneven: bool = False) -> None:
        self.rounding, self.uneven = rounding, uneven
        self.seen: list[Batch] = []
        self.closed = False

    def __call__(self, batch: Batch) -> Any:
        self.seen.append(batch)
        logits = batch.tokens[batch.wanted, None] * torch.ones(VOCABULARY) + self.rounding(len(batch.tokens))
        if self.uneven:
            logits += torch.arange(len(logits))[:, None]
        return logits

    def close(self) -> None:
        self.closed = True


class Recorder:
    """Computes again in place of recording."""

    closed = False

    def record(self, compute: Callable[[], Any]) -> Callable[[], Any]:
        return compute

    def close(self) -> None:
        self.closed = True


def sized(forward: Forward, recorder: Recorder | None = None, **options: Any) -> FixedSizeForward:
    chosen = {"vocabulary": VOCABULARY if recorder else None, **options}
    made = FixedSizeForward(forward, recorder, device=CPU, **chosen)
    forward.seen.clear()
    return made


@pytest.mark.parametrize(("count", "size"), [(1, 1), (2, 2), (3, 4), (5, 8), (17, 32), (64, 64)])
def test_rows_go_into_the_smallest_batch_that_holds_them(count: int, size: int) -> None:
    forward = Forward()
    logits = sized(forward)(make_batch([Rows(0, 7, range(count), min(count, 2))], CPU))
    assert logits[:, 0].tolist() == list(range(count))[-2:]
    [batch] = forward.seen
    assert batch.numbers.shape == (6, size)
    assert batch.numbers[SEQUENCE, :count].tolist() == [0] * count
    assert set(batch.numbers[CELL, count:].tolist()) <= {-1}
    assert set(batch.numbers[POSITION, count:].tolist()) <= {-1}


def test_nothing_of_an_earlier_batch_is_left() -> None:
    forward = Forward()
    made = sized(forward, sizes=(8,))
    made(make_batch([Rows(1, 5, range(8), 8, (-1, 0, 0, 1, 2, 3, 4, 5))], CPU))
    made(make_batch([Rows(0, 9, (4, 5), 1)], CPU))
    first, last = forward.seen
    assert first is last
    assert last.numbers[CELL].tolist() == [9, 10, *[-1] * 6]
    assert last.numbers[POSITION].tolist() == [9, 10, *[-1] * 6]


def test_the_paths_of_a_tree_come_along() -> None:
    forward = Forward()
    made = sized(forward, sizes=(4,))
    made(make_batch([Rows(0, 5, (1, 2, 3), 3, (-1, 0, 0))], CPU))
    assert forward.seen[0].scratch["paths"][:3, :2].tolist() == [[0, 0], [0, 1], [0, 2]]


def test_a_prompt_is_computed_as_it_comes() -> None:
    forward = Forward()
    sized(forward)(make_batch([Rows(0, 0, range(65), 1)], CPU))
    assert forward.seen[0].segments


@pytest.mark.parametrize(
    ("rounding", "sizes"),
    [
        (lambda size: 0.0, "1, 2, 4, 8, 16, 32, 64 rows"),
        (lambda size: float(size == 1), "2, 4, 8, 16, 32, 64 rows"),
        (lambda size: float(size > 8), "16, 32, 64 rows"),
        (lambda size: float(size in {4, 64}), "64 rows"),
    ],
)
def test_sizes_that_change_bits_are_left_out(rounding: Callable[[int], float], sizes: str) -> None:
    forward = sized(Forward(rounding), Recorder())
    assert forward.describe() == sizes + ", recorded"


def test_unless_they_are_to_be_kept() -> None:
    forward = sized(Forward(float), Recorder(), vocabulary=None)
    assert forward.describe() == "1, 2, 4, 8, 16, 32, 64 rows, recorded"


def test_rows_that_differ_within_a_batch_are_no_ground_to_leave_others_out() -> None:
    assert sized(Forward(uneven=True), Recorder()).describe().startswith("1, 2, 4")


def test_what_is_not_recorded_is_not_measured() -> None:
    forward = Forward(float)
    made = FixedSizeForward(forward, None, device=CPU, vocabulary=None, sizes=(64,))
    assert not forward.seen
    assert made.describe() == "64 rows"


@pytest.mark.parametrize(
    ("counts", "groups"),
    [
        ([1], [[0]]),
        ([1, 63], [[0, 1]]),
        ([1, 64], [[0], [1]]),
        ([65], [[0]]),
        ([8] * 9, [[0, 1, 2, 3, 4, 5, 6, 7], [8]]),
        ([3, 200, 5, 100], [[1, 3], [0, 2]]),
        ([0, 5], [[0, 1]]),
    ],
)
def test_prompts_are_computed_by_themselves(counts: Sequence[int], groups: list[list[int]]) -> None:
    assert divided(counts, 64) == groups


def test_logits_come_in_the_order_they_were_asked_for() -> None:
    recorder, forward = Recorder(), Forward()
    cells = KVCache(4, 400, dtype=torch.float32, device=CPU)
    info = FakeModel(VOCABULARY, context_length=400).info
    tokenizer: Any = None
    model = FixedSizeModel(sized(forward, recorder), cells, tokenizer, info, device=CPU, max_batch=512)
    batch = [Rows(2, 0, (7, 8), 2), Rows(0, 0, range(100), 1), Rows(3, 0, (5,), 0), Rows(1, 0, (9,), 1)]
    assert model.forward(batch)[:, 0].tolist() == [7, 8, 99, 9]
    assert [batch.numbers.shape[1] for batch in forward.seen] == [100, 4]
    assert cells.lengths == [100, 1, 2, 1]
    assert np.array_equal(model.forward([Rows(0, 100, (3,), 1)])[:, :1], [[3]])
    model.close()
    assert recorder.closed
    assert forward.closed


def test_drafts_have_no_more_rows_than_the_largest_size() -> None:
    cells = KVCache(1, 400, dtype=torch.float32, device=CPU)
    info, tokenizer = FakeModel(VOCABULARY).info, None
    model = FixedSizeModel(sized(Forward()), cells, tokenizer, info, device=CPU, max_batch=512)  # type: ignore[arg-type]
    assert model.with_capabilities(max_rows=129).capabilities.max_rows == 64
    assert model.with_capabilities(max_rows=8).capabilities.max_rows == 8


@pytest.mark.parametrize("vocabulary", [4, 5, 223])
def test_tokens_that_are_compared_are_in_the_vocabulary(vocabulary: int) -> None:
    met: list[int] = []

    class Listening(Forward):
        def __call__(self, batch: Batch) -> Any:
            met.extend(batch.tokens.tolist())
            return super().__call__(batch)

    FixedSizeForward(Listening(), Recorder(), device=CPU, vocabulary=vocabulary)
    assert len(set(met)) == 4
    assert max(met) < vocabulary
