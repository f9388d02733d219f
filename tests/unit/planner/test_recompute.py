"""What it costs later that accepted tokens are computed again."""

from __future__ import annotations

import random

import pytest

from foredraft.planner.recompute import Recompute
from foredraft.types import Capabilities, Draft, Outcome, Rollback

ROW = 0.25


def recompute(free: int) -> Recompute:
    return Recompute(
        Capabilities(
            Rollback.SNAPSHOT,
            batch_invariant=True,
            invariance_note="",
            max_rows=64,
            max_batch=512,
            sequences=4,
            rollback_bound=free,
        )
    )


def rejected(length: int, accepted: int) -> Outcome:
    return Outcome(0, (1,) * (accepted + 1), Draft((1,) * length, "suffix"), accepted)


def test_a_model_that_truncates_pays_nothing() -> None:
    able = Capabilities(
        Rollback.TRUNCATE, batch_invariant=True, invariance_note="", max_rows=64, max_batch=512, sequences=1
    )
    free = Recompute(able)
    assert not free.needed
    assert free.costs(1, [0.9, 0.5], ROW) == [0.0, 0.0, 0.0]
    assert free.settle(1, rejected(4, 1)) == 0


def test_costs_are_those_of_the_expected_rows() -> None:
    """Against a simulation of the draft's fate."""
    rng, chain, free, rows = random.Random(1), [0.8, 0.6, 0.3, 0.2], 1, 5
    model = recompute(free)
    model.settle(1, rejected(6, rows - 1))
    for length, cost in enumerate(model.costs(1, chain, ROW)):
        total, rounds = 0.0, 40_000
        for _ in range(rounds):
            luck = rng.random()
            accepted = sum(luck < survival for survival in chain[:length])
            total += rows + accepted + 1 if length - accepted > free else 0
        assert cost == pytest.approx(ROW * total / rounds, rel=0.05, abs=0.01)


def test_rows_add_up_until_a_round_keeps_everything() -> None:
    model = recompute(1)
    assert model.settle(1, rejected(6, 2)) == 3
    assert model.settle(1, rejected(6, 0)) == 4
    assert model.settle(2, rejected(6, 4)) == 5
    assert model.settle(1, rejected(6, 5)) == 0, "one too many costs nothing"
    model.settle(1, rejected(6, 2))
    assert model.settle(1, Outcome(0, (1,))) == 0, "a plain round computes them"
    model.forget(2)
    assert model.settle(2, rejected(6, 4)) == 5
