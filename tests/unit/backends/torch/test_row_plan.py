"""Who computes which rows: every one has a program, a tree's rows are alone, and the room is kept to."""

from __future__ import annotations

import pytest
import torch

from foredraft.backends.torch import row_plan
from foredraft.backends.torch.batch import UNBROKEN, make_batch, paths_of
from foredraft.backends.torch.row_plan import plan_rows
from foredraft.types import Rows

CPU = torch.device("cpu")
TREE = (-1, 0, 0, 2)


def queries(count: int) -> torch.Tensor:
    return torch.zeros(count, 9, 64)


@pytest.mark.parametrize("room", [1, 40 * 9 * 64, 1 << 23])
def test_every_row_has_one_program(monkeypatch: pytest.MonkeyPatch, room: int) -> None:
    monkeypatch.setattr(row_plan, "ROOM", room)
    parts = [Rows(0, 0, range(33), 0), Rows(1, 300, range(4), 0, TREE), Rows(2, 10, (1,), 0)]
    plan = plan_rows(make_batch(parts, CPU), queries(38), cells=768, shared=3)
    rows: list[int] = []
    for part in plan.parts:
        tiles = part.tiles.tolist()
        assert len(tiles) == part.programs
        assert sum(count for _, count in tiles) == part.rows
        assert tiles[0][0] == part.first == len(rows)
        for first, count in tiles:
            assert count == 1 or (count <= 5 and first + count <= 33), (
                "only rows of one chain share a program"
            )
            rows += range(first, first + count)
        assert part.rows * 9 * plan.stretches * 64 <= room or part.programs == 1
    assert rows == list(range(38))
    assert plan.stretches == 2
    assert plan.sums.shape[1:] == (9, 2, 64)


def test_a_batch_that_will_hold_any_rows_has_programs_for_all_cells() -> None:
    batch = make_batch([Rows(0, 0, range(8), 0)], CPU)
    batch = type(batch)(batch.numbers, batch.wanted, (), {"paths": "given"})
    plan = plan_rows(batch, queries(8), cells=2112, shared=3)
    assert [(part.first, part.rows, part.programs, part.tiles) for part in plan.parts] == [(0, 8, 8, None)]
    assert (plan.stretch, plan.stretches, plan.paths) == (256, 9, "given")


def test_long_caches_have_long_stretches() -> None:
    plan = plan_rows(make_batch([Rows(0, 40_000, (1,), 0)], CPU), queries(1), cells=131_072, shared=1)
    assert (plan.stretch, plan.stretches) == (2048, 20)


def test_a_row_of_a_tree_sees_its_ancestors_in_their_order() -> None:
    batch = make_batch([Rows(1, 7, range(4), 0, TREE), Rows(0, 5, (1, 2), 0)], CPU)
    assert batch.numbers[UNBROKEN].tolist() == [6, 7, 7, 7, 7, 7]
    assert batch.positions.tolist() == [5, 6, 7, 8, 8, 9]
    assert paths_of(batch)[2:, :3].tolist() == [[0, 0, 0], [0, 1, 0], [0, 2, 0], [0, 2, 3]]
    assert paths_of(make_batch([Rows(0, 5, (1, 2), 0)], CPU)) is None
