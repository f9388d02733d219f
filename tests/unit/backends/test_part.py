"""A model divided among several engines: who is told what, and who frees it. What a part computes is in
tests/contract.
"""

from __future__ import annotations

import numpy as np
import pytest

from foredraft.backends.part import split
from foredraft.errors import BackendError
from foredraft.testing import FakeModel
from foredraft.types import Rows


def test_a_part_has_its_share_of_the_sequences() -> None:
    model = FakeModel(sequences=6)
    parts = split(model, 3)
    assert [part.capabilities.sequences for part in parts] == [2, 2, 2]
    assert parts[1].info is model.info
    assert parts[1].tokenizer is model.tokenizer


def test_parts_do_not_touch_each_others_cells() -> None:
    model = FakeModel(sequences=4)
    one, other = split(model, 2)
    one.forward([Rows(1, 0, (1, 2, 3), 1)])
    other.forward([Rows(0, 0, (4, 5), 1), Rows(1, 0, (6,), 1)])
    assert [model.length(seq) for seq in range(4)] == [0, 3, 2, 1]
    other.truncate(0, 1)
    one.release(1)
    assert [model.length(seq) for seq in range(4)] == [0, 0, 1, 1]
    other.fork(0, 1, 1)
    assert np.array_equal(
        other.forward([Rows(1, 1, (9,), 1)]).copy(), other.forward([Rows(0, 1, (9,), 1)]).copy()
    )


def test_one_part_is_the_model_itself() -> None:
    model = FakeModel()
    assert split(model, 1) == [model]


@pytest.mark.parametrize(("sequences", "parts"), [(4, 3), (2, 4)])
def test_sequences_that_cannot_be_divided(sequences: int, parts: int) -> None:
    with pytest.raises(ValueError, match=f"{sequences} sequences cannot be divided among {parts} parts"):
        split(FakeModel(sequences=sequences), parts)


class Counted(FakeModel):
    """Counts how often it was closed."""

    times_closed = 0

    def close(self) -> None:
        self.times_closed += 1


def test_the_last_part_frees_the_model() -> None:
    model = Counted(sequences=2)
    one, other = split(model, 2)
    one.forward([Rows(0, 0, (1,), 1)])
    one.close()
    one.close()
    assert (model.times_closed, model.length(0)) == (0, 0)
    other.forward([Rows(0, 0, (1,), 1)])
    other.close()
    other.close()
    assert model.times_closed == 1


def test_a_closed_part_computes_nothing() -> None:
    one, other = split(FakeModel(sequences=2), 2)
    one.close()
    with pytest.raises(BackendError, match="is closed"):
        one.forward([Rows(0, 0, (1,), 1)])
    other.forward([Rows(0, 0, (1,), 1)])


@pytest.mark.parametrize("seq", [-1, 2])
def test_a_sequence_of_another_part_is_an_error(seq: int) -> None:
    model = FakeModel(sequences=6)
    part = split(model, 3)[1]
    with pytest.raises(BackendError, match=f"no sequence {seq}: there are 2"):
        part.forward([Rows(seq, 0, (1,), 1)])
    assert [model.length(seq) for seq in range(6)] == [0] * 6
