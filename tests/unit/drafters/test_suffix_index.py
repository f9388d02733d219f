from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from foredraft.drafters.suffix_index import BULK_TOKENS, REACH, SEPARATOR, SuffixIndex

TEXTS = st.lists(st.integers(0, 5), max_size=300)


@given(TEXTS, TEXTS, st.sampled_from([1, 7, BULK_TOKENS]))
def test_index_grows_like_one_built_at_once(head: list[int], rest: list[int], step: int) -> None:
    grown, built = SuffixIndex((1, 2, 4, 8), head), SuffixIndex((1, 2, 4, 8), head + rest)
    for at in range(0, len(rest), step):
        grown.extend(rest[at : at + step])
    assert grown.hashes == built.hashes
    for level, width in enumerate(built.levels):
        if len(built) >= width:
            grams = [index.occurrences(level, index, 1000) for index in (grown, built)]
            text = head + rest
            ends = [e for e in range(width, len(text)) if text[e - width : e] == text[-width:]]
            # Bucket-mates with equal first and last tokens may come along; `common` sorts them out.
            assert [e for e in grams[0] if e in ends] == [e for e in grams[1] if e in ends] == ends[::-1]


def test_index_grows_past_its_capacity() -> None:
    index = SuffixIndex((1, 2))
    first = index.capacity
    index.extend([1, 2, 3])
    for _ in range(first):
        index.extend([7])
    assert index.capacity > first
    assert index.text.tolist() == [1, 2, 3] + [7] * first
    assert len(index.occurrences(1, index, 9)) == 9


@given(TEXTS, TEXTS, TEXTS)
def test_at_once_and_one_by_one_are_the_same(head: list[int], middle: list[int], tail: list[int]) -> None:
    levels = (1, 2, 4, 8, 16)
    once, single = SuffixIndex(levels, head), SuffixIndex(levels, head)
    for tokens in (middle * 2, tail):
        once.extend(tokens)
        for token in tokens:
            single.extend([token])
    assert once.text == single.text
    for level in range(len(levels)):
        found = [
            [index.before(end, level) for end in range(levels[level], len(index) + 1)]
            for index in (once, single)
        ]
        assert found[0] == found[1]


@given(TEXTS)
def test_an_earlier_place_is_the_newest_one(text: list[int]) -> None:
    index = SuffixIndex((2,), text)
    for end in range(2, len(text) + 1):
        earlier = [place for place in range(2, end) if text[place - 2 : place] == text[end - 2 : end]]
        assert index.before(end, 0) == max(earlier, default=0)


def test_windows_stop_at_the_texts_ends() -> None:
    index = SuffixIndex((2,), [1, 2, 3, 1, 2])
    ends = index.occurrences(0, index, 9)
    assert ends == [2]
    assert index.common(2, index.tail()) == 2
    assert index.following(2).tolist() == [3, 1, 2]
    assert index.following(5).tolist() == []
    separated = SuffixIndex((2,), [1, 2, 3, SEPARATOR, *range(100)])
    assert separated.following(2).tolist() == [3]
    assert separated.following(4).tolist() == list(range(REACH))


def test_lengths_are_counted_up_to_the_reach() -> None:
    index = SuffixIndex((1,), [7] * 200)
    assert [index.common(end, index.tail()) for end in (199, 63, 62, 1)] == [63, 63, 62, 1]


@given(st.lists(st.integers(0, 1), max_size=40), st.integers(0, 17), st.integers(1, 20))
def test_short_matches_are_as_long_as_measured_in_full(text: list[int], short: int, most: int) -> None:
    index = SuffixIndex((1,), text)
    tail = index.tail(most)
    for end in range(len(text)):
        assert index.common(end, tail, short) == index.common(end, tail)
