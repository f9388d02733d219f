from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foredraft.drafters.ngram_simple import create
from foredraft.errors import SpeculationStringError
from foredraft.protocols import RequestView
from foredraft.testing import drafter_context, run_drafter
from foredraft.types import Draft, DraftLimit


def draft(tokens: list[int], limit: int = 64, **options: str) -> Draft | None:
    drafter = create(drafter_context(), {name.replace("_", "-"): value for name, value in options.items()})
    request = RequestView(id=1, tokens=tokens)
    drafter.start(request)
    return drafter.draft([(request, DraftLimit(limit))])[0]


def test_drafts_what_followed_the_latest_match() -> None:
    found = draft([1, 2, 3, 0, 1, 2, 4, 5, 6, 1, 2], n="2", m="3")
    assert found is not None
    assert found.tokens == (4, 5, 6)
    assert found.source == "ngram-simple"
    assert found.parents is None
    assert dict(found.features) == {"match_length": 2, "count": 2}


def test_match_length_is_that_of_the_whole_match() -> None:
    found = draft([7, 8, 9, 1, 2, 5, 0, 8, 9, 1, 2], n="2", m="1")
    assert found is not None
    assert found.tokens == (5,)
    assert found.features["match_length"] == 4


def test_no_draft_without_a_match() -> None:
    assert draft([1, 2, 3, 4, 5], n="2") is None
    assert draft([1], n="2") is None
    assert draft([], n="2") is None


def test_defaults_are_12_and_48() -> None:
    text = list(range(100, 200))
    assert draft(text + text[20:31]) is None
    found = draft(text + text[20:32])
    assert found is not None
    assert found.tokens == tuple(text[32:80])


@given(st.lists(st.integers(0, 2), min_size=1, max_size=80), st.integers(1, 4), st.integers(1, 6))
def test_equals_a_search_of_the_history(tokens: list[int], n: int, m: int) -> None:
    found = draft(tokens, n=str(n), m=str(m))
    ends = [end for end in range(n, len(tokens)) if tokens[end - n : end] == tokens[-n:]]
    if not ends:
        assert found is None
        return
    period = tokens[ends[-1] :]
    assert found is not None
    assert found.tokens == tuple((period * m)[:m])


def test_replaying_a_repetitive_text_accepts_drafts() -> None:
    passage = list(range(50, 80))
    drafts = run_drafter(create(drafter_context(), {}), passage * 4, prompt=45)
    assert max(map(len, drafts)) == 48
    assert drafts[0].tokens[:20] == tuple(passage[15:] + passage[:5])


@pytest.mark.parametrize(
    "options", [{"n": "0"}, {"m": "0"}, {"min-hits": "0"}, {"n": "1025"}, {"n": "two"}, {"size": "3"}]
)
def test_options_that_do_not_fit_are_refused(options: dict[str, str]) -> None:
    with pytest.raises(SpeculationStringError):
        create(drafter_context(), options)
