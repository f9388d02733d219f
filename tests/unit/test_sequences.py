from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foredraft.sequences import common_prefix, repeated_length


def by_definition(tokens: list[int], copies: int, least: int, longest: int) -> int | None:
    """The same, token by token."""
    for length in range(1, min(longest, len(tokens) - 1) + 1):
        same = 0
        while same + length < len(tokens) and tokens[-1 - same] == tokens[-1 - same - length]:
            same += 1
        if length + same >= max(copies * length, least):
            return length
    return None


@given(st.integers(0, 3000), st.integers(0, 3000), st.integers(0, 3000))
def test_the_common_beginning_of_texts_of_any_length(length: int, other: int, place: int) -> None:
    one, two = list(range(length)), list(range(other))
    if place < other:
        two[place] = -1
    expected = min(length, other, place if place < other else other)
    assert common_prefix(one, two) == common_prefix(tuple(two), one) == expected


@given(st.lists(st.integers(0, 2), max_size=40), st.integers(2, 4), st.integers(1, 12), st.integers(1, 20))
def test_the_shortest_passage_that_is_repeated(
    tokens: list[int], copies: int, least: int, longest: int
) -> None:
    found = repeated_length(tokens, copies=copies, least=least, longest=longest)
    assert found == by_definition(tokens, copies, least, longest)


@given(st.lists(st.integers(0, 1), min_size=1, max_size=30), st.integers(0, 30))
def test_what_comes_before_does_not_count(tokens: list[int], begin: int) -> None:
    begin = min(begin, len(tokens))
    alone = repeated_length(tokens[begin:], copies=2, least=4, longest=9)
    assert repeated_length(tokens, copies=2, least=4, longest=9, begin=begin) == alone


@pytest.mark.parametrize(
    ("tokens", "length"),
    [
        ([], None),
        ([1], None),
        (list(range(200)), None),
        ([*range(30), *[7] * 64], 1),
        ([*range(30), *[7] * 63], None),
        ([*range(100, 130), *range(50), *range(50), *range(20)], 50),
        ([*range(112), *range(100)], None),
        ([*range(112), *range(112)], 112),
        ([*range(32), *range(32), 99], None),
    ],
)
def test_two_copies_of_64_tokens_together(tokens: list[int], length: int | None) -> None:
    assert repeated_length(tokens, copies=2, least=64, longest=128) == length
