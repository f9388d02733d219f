from __future__ import annotations

import numpy as np
import pytest

from foredraft.sampling.successors import MANY, MARGIN, top_successors, verified_successors
from foredraft.types import Draft, Logits

VOCABULARY = 49_152


def row(values: dict[int, float], size: int = 40) -> Logits:
    logits = np.full(size, -20.0, np.float32)
    for token, value in values.items():
        logits[token] = value
    return logits


def sorted_out(logits: Logits, k: int) -> tuple[int, ...]:
    """The same from its definition."""
    order = sorted(range(len(logits)), key=lambda token: (-logits[token], token))
    floor = logits.max() - np.float32(MARGIN)
    return tuple(token for token in order[:k] if logits[token] >= floor)


def test_best_first_and_among_equals_the_lower_id() -> None:
    assert top_successors(row({7: 3.0, 3: 5.0, 9: 3.0, 1: 4.0}), 8) == (3, 1, 7, 9)
    assert top_successors(row({7: 3.0, 3: 5.0, 9: 3.0, 1: 4.0}), 3) == (3, 1, 7)


def test_tokens_far_below_the_best_are_left_out() -> None:
    assert top_successors(row({3: 5.0, 4: 5.0 - MARGIN, 5: 4.9 - MARGIN}), 8) == (3, 4)
    assert top_successors(row({3: 5.0}), 8) == (3,)


@pytest.mark.parametrize("scale", [0.1, 1.0, 2.0, 5.0])
def test_the_same_as_sorting_the_whole_row(scale: float) -> None:
    rng = np.random.default_rng(3)
    for k in (1, 4, 15):
        logits = (scale * rng.standard_normal(VOCABULARY)).astype(np.float32)
        assert top_successors(logits, k) == sorted_out(logits, k)


def test_a_flat_row_has_its_best_all_the_same() -> None:
    logits = np.zeros(VOCABULARY, np.float32)
    logits[[5, 40_000]] = 1.0, 2.0
    assert len(np.flatnonzero(logits >= logits.max() - MARGIN)) > MANY
    assert top_successors(logits, 2) == (40_000, 5)


@pytest.mark.parametrize("k", [1, 4])
@pytest.mark.parametrize("value", [0.0, 3.5, -np.inf, np.nan])
def test_a_row_that_says_nothing_has_none(value: float, k: int) -> None:
    assert top_successors(np.full(50, value, np.float32), k) == ()


def test_one_number_above_the_others_is_an_opinion() -> None:
    for token in (0, 20, 39):
        assert top_successors(row({token: -19.0}), 1) == (token,)
    assert top_successors(row({20: 1.0, 30: 1.0}), 1) == (20,)


def test_every_row_of_a_verified_draft_is_told_with_its_token() -> None:
    rows = np.stack([row({token: 1.0}) for token in (11, 12, 13)])
    chain = Draft((21, 22), "any")
    tree = Draft((21, 22), "any", parents=(-1, -1))
    told = ((20, (11,)), (21, (12,)), (22, (13,)))
    assert verified_successors(20, chain, rows, 4) == told
    assert verified_successors(20, tree, rows, 4) == told
    assert verified_successors(20, None, rows[:1], 4) == told[:1]
