from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foredraft.sequences import looping_tail


def by_trying(tokens: list[int], copies: int, least: int) -> int:
    """The same, from its definition."""
    found = 0
    for period in range(1, len(tokens)):
        length = period
        while length < len(tokens) and tokens[-length - 1] == tokens[-length - 1 + period]:
            length += 1
        if length >= max(copies * period, least):
            found = max(found, length)
    return found


@given(st.lists(st.integers(0, 2), max_size=40), st.integers(2, 4), st.integers(1, 12))
def test_the_longest_tail_of_copies(tokens: list[int], copies: int, least: int) -> None:
    assert looping_tail(tokens, copies=copies, least=least) == by_trying(tokens, copies, least)


@pytest.mark.parametrize(
    ("tokens", "length"),
    [
        ([], 0),
        ([1], 0),
        (list(range(200)), 0),
        ([*range(30), *[7] * 64], 64),
        ([*range(30), *[7] * 63], 0),
        ([*range(100, 130), *range(50), *range(50), *range(20)], 120),
        ([*range(112), *range(100)], 0),
        ([*range(112), *range(112)], 224),
        ([*range(32), *range(32), 99], 0),
    ],
)
def test_a_looping_tail(tokens: list[int], length: int) -> None:
    assert looping_tail(tokens) == length


def test_long_texts_take_linear_time() -> None:
    """Half a million tokens would take hours if every period were tried by itself."""
    assert looping_tail([*[1] * 250_000, 2, *[1] * 250_000]) == 250_000
