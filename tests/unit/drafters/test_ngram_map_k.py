from __future__ import annotations

from foredraft.drafters.ngram_map_k import create, would_accept
from foredraft.protocols import RequestView
from foredraft.testing import drafter_context
from foredraft.types import Draft, DraftLimit


def draft(tokens: list[int], limit: int = 64) -> Draft | None:
    drafter = create(drafter_context(), {"n": "2", "m": "4"})
    request = RequestView(id=1, tokens=tokens)
    drafter.start(request)
    return drafter.draft([(request, DraftLimit(limit))])[0]


def test_first_repeat_drafts_m_tokens() -> None:
    found = draft([1, 2, 3, 4, 5, 6, 7, 1, 2])
    assert found is not None
    assert found.tokens == (3, 4, 5, 6)
    assert dict(found.features) == {"match_length": 2, "count": 1, "accepted": 4}


def test_drafts_no_further_than_the_last_draft_was_right() -> None:
    # At the second 1 2 a copy of the first continuation is right for two tokens.
    found = draft([1, 2, 3, 4, 5, 6, 0, 1, 2, 3, 4, 9, 9, 0, 1, 2])
    assert found is not None
    assert found.tokens == (3, 4)
    assert found.features["accepted"] == 2


def test_nothing_is_drafted_where_the_last_draft_was_wrong_at_once() -> None:
    assert draft([1, 2, 3, 3, 0, 1, 2, 4, 4, 0, 1, 2]) is None


def test_no_wrong_token_yet_is_no_limit() -> None:
    assert would_accept([1, 2, 3, 4, 5, 6, 1, 2, 3], 0, 6, 6) == 6
    assert would_accept([1, 2, 3, 4, 1, 2, 9, 4], 0, 4, 4) == 2


def test_the_limit_of_the_round_holds() -> None:
    found = draft([1, 2, 3, 4, 5, 6, 7, 1, 2], limit=1)
    assert found is not None
    assert found.tokens == (3,)
