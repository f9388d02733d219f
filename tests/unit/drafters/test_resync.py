"""After a changed token the copy goes on where the source does."""

from __future__ import annotations

import pytest

from drafter_cases import commit, draft, start
from foredraft.drafters.resync import CONFIDENCE, Copying, confidence_of
from foredraft.drafters.suffix import create
from foredraft.testing import drafter_context

SOURCE = list(range(10, 40))


def test_what_follows_the_replaced_token_is_expected() -> None:
    copying = Copying(3, (7, 8, 9, 10))
    assert copying.after_a_change([1, 2, 3, 70]) == (8, 9, 10)
    assert copying.after_a_change([1, 2, 3, 7, 80]) == (9, 10)


@pytest.mark.parametrize(
    "history",
    [
        [1, 2, 3],
        [1, 2, 3, 7],
        [1, 2, 3, 70, 8],
        [1, 2, 3, 70, 71],
        [1, 2, 3, 7, 8, 9, 100],
        [1, 2, 3, 7, 8, 9, 10, 11],
        [1],
    ],
)
def test_nothing_is_expected_before_a_change_long_after_one_or_past_the_end(history: list[int]) -> None:
    assert not Copying(3, (7, 8, 9, 10)).after_a_change(history)


def test_estimates_go_on_at_the_last_one() -> None:
    assert confidence_of(2) == CONFIDENCE[:2]
    assert confidence_of(9)[-1] == CONFIDENCE[-1]
    assert len(confidence_of(9)) == 9


def test_suffix_finds_the_way_back_after_a_changed_token() -> None:
    drafter = create(drafter_context(), {"min-p": "0"})
    request = start(drafter, [*SOURCE, 1, *SOURCE[:6]])
    found = draft(drafter, request)
    assert found is not None
    assert found.tokens[:3] == tuple(SOURCE[6:9])
    commit(drafter, request, [2])  # never seen before: there is no match at all
    back = draft(drafter, request)
    assert back is not None
    assert back.tokens[:3] == tuple(SOURCE[7:10])
    assert back.features["match_length"] == 0
    commit(drafter, request, [3])
    assert draft(drafter, request) is None, "two changes running are another text"


def test_removed_text_is_no_change() -> None:
    drafter = create(drafter_context(), {"min-p": "0"})
    request = start(drafter, [*SOURCE, 1, *SOURCE[:6]])
    draft(drafter, request)
    commit(drafter, request, [2], kept=len(SOURCE))
    assert draft(drafter, request) is None
