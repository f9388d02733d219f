from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from foredraft.drafters.lookup.suffix_index import REACH, SEPARATOR, SuffixIndex


@given(st.lists(st.integers(0, 5), max_size=300), st.lists(st.integers(0, 5), max_size=300))
def test_index_grows_like_one_built_at_once(head: list[int], rest: list[int]) -> None:
    grown, built = SuffixIndex((1, 2, 4, 8), head), SuffixIndex((1, 2, 4, 8), head + rest)
    for token in rest:
        grown.extend([token])
    assert grown.hashes == built.hashes
    for level, width in enumerate(built.levels):
        if len(built) >= width:
            grams = [index.occurrences(level, index, 1000) for index in (grown, built)]
            text = head + rest
            ends = [e for e in range(width, len(text)) if text[e - width : e] == text[-width:]]
            # Bucket-mates with equal first and last tokens may come along; `lengths` sorts them out.
            assert [e for e in grams[0] if e in ends] == [e for e in grams[1] if e in ends] == ends[::-1]


def test_index_grows_past_its_capacity() -> None:
    index = SuffixIndex((1, 2))
    first = index.capacity
    index.extend([1, 2, 3])
    for _ in range(first):
        index.extend([7])
    assert index.capacity > first
    assert index.text().tolist() == [1, 2, 3] + [7] * first
    assert len(index.occurrences(1, index, 9)) == 9


def test_windows_stop_at_the_texts_ends() -> None:
    index = SuffixIndex((2,), [1, 2, 3, 1, 2])
    ends = index.occurrences(0, index, 9)
    assert ends == [2]
    assert index.lengths(ends, index) == [2]
    assert index.following(ends[0]).tolist() == [3, 1, 2] + [SEPARATOR] * (REACH - 3)


def test_lengths_are_counted_up_to_the_reach() -> None:
    index = SuffixIndex((1,), [7] * 200)
    assert index.lengths([199, 63, 62, 1], index) == [63, 63, 62, 1]
