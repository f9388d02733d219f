"""The index against a plain search of the history."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foredraft.drafters import ngram_index
from foredraft.drafters.ngram_index import NgramIndex, copy_from, match_length, window_keys

texts = st.lists(st.integers(0, 2), max_size=60)


def places_by_search(tokens: list[int], n: int) -> list[int]:
    """Where the text went on after each earlier occurrence of its last n tokens, newest first."""
    if len(tokens) < n:
        return []
    return [end for end in range(len(tokens) - 1, n - 1, -1) if tokens[end - n : end] == tokens[-n:]]


@given(texts, st.integers(1, 4))
def test_finds_every_earlier_occurrence_newest_first(tokens: list[int], n: int) -> None:
    index = NgramIndex(n, tokens)
    expected = places_by_search(tokens, n)
    assert index.recent(tokens, 100) == expected
    assert index.count() == len(expected)
    assert index.recent(tokens, 1) == expected[:1]


@given(texts, st.lists(st.tuples(st.integers(0, 60), texts), max_size=4), st.integers(1, 4))
def test_edits_leave_it_as_if_built_anew(
    tokens: list[int], edits: list[tuple[int, list[int]]], n: int
) -> None:
    index = NgramIndex(n, tokens)
    for at, added in edits:
        kept = min(at, len(tokens))
        tokens = tokens[:kept] + added
        index.update(tokens, kept)
        assert len(index) == len(tokens)
        assert index.recent(tokens, 100) == places_by_search(tokens, n)
        assert index.count() == len(places_by_search(tokens, n))
        for window in [tokens[begin : begin + n] for begin in range(max(0, len(tokens) - n))]:
            key = int(window_keys(window, n)[-1])
            assert index.after(tokens, key, window, 100) == [
                end for end in range(len(tokens) - 1, n - 1, -1) if tokens[end - n : end] == window
            ]


@pytest.mark.parametrize("added", [10, ngram_index.BULK + 10])
def test_bulk_and_single_growth_agree(added: int) -> None:
    tokens = [(i * i) % 7 for i in range(500 + added)]
    index = NgramIndex(5, tokens[:500])
    index.update(tokens, 500)
    fresh = NgramIndex(5, tokens)
    assert index.recent(tokens, 50) == fresh.recent(tokens, 50) == places_by_search(tokens, 5)[:50]
    assert index.count() == fresh.count() > 50


def test_a_key_shared_by_different_ngrams_is_no_match(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ngram_index, "BASE", 1)  # the sum of the tokens: 1 2 and 2 1 collide
    tokens = [2, 1, 9, 1, 2, 8, 3, 5, 2, 1]
    index = NgramIndex(2, tokens)
    assert index.recent(tokens, 10) == [2]


def test_keys_roll_to_what_a_whole_window_gives() -> None:
    tokens = [5, 0, 262_143, 7, 7, 1, 3]
    assert window_keys(tokens, 3)[2:].tolist() == [
        int(window_keys(tokens[at : at + 3], 3)[-1]) for at in range(5)
    ]


def test_a_copy_that_reaches_the_end_reads_on_in_itself() -> None:
    assert copy_from([9, 1, 2, 3], 1, 8) == [1, 2, 3, 1, 2, 3, 1, 2]
    assert copy_from([9, 1, 2, 3], 0, 2) == [9, 1]


def test_match_length_goes_back_to_the_first_difference() -> None:
    tokens = [0, 1, 2, 3, 4, 5, 9, 1, 2, 3, 4, 5]
    assert match_length(tokens, 6, 2) == 5
    assert match_length([1, 2, 1, 2], 2, 1) == 2  # stops at the beginning of the text
    assert match_length([1] * 500, 499, 3) == ngram_index.LONGEST_MATCH


def test_the_upper_bits_of_keys_tell_the_last_token_apart() -> None:
    keys = [int(window_keys([5, 6, last], 3)[-1]) >> 44 for last in range(1000)]
    assert len(set(keys)) > 990
