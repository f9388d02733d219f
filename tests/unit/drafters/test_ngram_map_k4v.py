from __future__ import annotations

import pytest

from foredraft.drafters.ngram_map_k4v import create
from foredraft.protocols import RequestView
from foredraft.testing import drafter_context
from foredraft.types import Draft, DraftLimit

A, B, C, D, E = [3, 4], [3, 5], [6, 6], [7, 7], [8, 8]


def draft(*values: list[int], limit: int = 64, min_hits: str = "1") -> Draft | None:
    """The draft after the key 1 2, which was followed by `values`, in this order."""
    drafter = create(drafter_context(), {"n": "2", "m": "2", "min-hits": min_hits})
    tokens = [token for value in values for token in (1, 2, *value)] + [1, 2]
    request = RequestView(id=1, tokens=tokens)
    drafter.start(request)
    return drafter.draft([(request, DraftLimit(limit))])[0]


def test_one_value_is_drafted() -> None:
    found = draft(A)
    assert found is not None
    assert found.tokens == (3, 4)
    assert found.confidence == (1.0, 1.0)
    assert found.features["count"] == 1


def test_the_most_frequent_value_is_drafted_at_twice_the_rest() -> None:
    found = draft(A, C, A)
    assert found is not None
    assert found.tokens == (3, 4)
    assert found.features["value_count"] == 2
    assert found.confidence == (2 / 3, 1.0)


@pytest.mark.parametrize("values", [(A, C), (A, C, A, D), (A, A, A, C, D)])
def test_nothing_is_drafted_under_twice_the_rest(values: tuple[list[int], ...]) -> None:
    assert draft(*values) is None


def test_confidence_is_the_share_that_still_agrees() -> None:
    found = draft(B, A, A, A)
    assert found is not None
    assert found.confidence == (1.0, 0.75)


def test_a_fifth_value_counts_against_the_preferred_one() -> None:
    assert draft(E, A, A, A, A, A, A, B, C, D) is None
    found = draft(E, A, A, A, A, A, A, A, A, B, C, D)
    assert found is not None
    assert found.tokens == (3, 4)
    assert found.confidence == (9 / 12, 8 / 9)


def test_the_limit_cuts_the_confidence_too() -> None:
    found = draft(A, limit=1)
    assert found is not None
    assert found.tokens == (3,)
    assert found.confidence == (1.0,)
