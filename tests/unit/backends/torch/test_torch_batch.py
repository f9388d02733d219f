"""Packing rows: positions, wanted rows, and a tree taken apart into branches."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from foredraft.backends.torch.batch import ancestors, make_batch
from foredraft.types import Rows

CPU = torch.device("cpu")


def test_sequences_follow_one_another_and_logits_are_in_the_order_asked_for() -> None:
    batch = make_batch([Rows(2, 7, (5, 6, 7), 2), Rows(0, 0, (8,), 0), Rows(1, 3, (9, 1), 2)], CPU)
    assert batch.tokens.tolist() == [8, 9, 1, 5, 6, 7]
    assert batch.positions.tolist() == [0, 3, 4, 7, 8, 9]
    assert batch.wanted.tolist() == [4, 5, 1, 2]
    assert [(part.seq, part.start, part.first, part.end) for part in batch.segments] == [
        (0, 0, 0, 1),
        (1, 3, 1, 3),
        (2, 7, 3, 6),
    ]


def test_a_tree_without_a_fork_is_a_chain() -> None:
    [segment] = make_batch([Rows(0, 4, (1, 2, 3), 3, (-1, 0, 1))], CPU).segments
    assert segment.parents == ()
    assert segment.branches == ()


def test_rows_of_a_tree_stand_at_their_depth() -> None:
    batch = make_batch([Rows(1, 10, (1, 2, 3, 4, 5), 5, (-1, 0, 0, 2, -1)), Rows(0, 0, (9,), 0)], CPU)
    assert batch.positions.tolist() == [0, 10, 11, 11, 12, 10]
    branches = batch.segments[1].branches
    assert [(branch.path.tolist(), branch.new) for branch in branches] == [
        ([1, 2], 2),
        ([1, 3, 4], 2),
        ([5], 1),
    ]


@given(st.lists(st.integers(0, 30), min_size=1, max_size=24))
def test_branches_hold_every_row_once_after_its_parent(picks: list[int]) -> None:
    parents = [pick % (row + 1) - 1 for row, pick in enumerate(picks)]
    [segment] = make_batch([Rows(0, 0, range(len(parents)), 0, parents)], CPU).segments
    computed: list[int] = []
    for branch in segment.branches:
        path = branch.path.tolist()
        assert path == ancestors(parents, path[-1])
        assert set(path[: -branch.new]) <= set(computed)
        computed += path[-branch.new :]
    if segment.branches:
        assert sorted(computed) == list(range(len(parents)))
    else:
        assert parents == list(range(-1, len(parents) - 1))
