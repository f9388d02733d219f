from __future__ import annotations

from math import exp

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drafter_cases import occurred
from foredraft.drafters.suffix_index import REACH, SEPARATOR, SuffixIndex
from foredraft.drafters.suffix_vote import (
    COUNT_WEIGHT,
    DISSENT,
    OFFSET,
    PAST_UNCERTAINTY,
    SHARPNESS,
    UNCERTAINTY,
    longest_matches,
    vote,
)

TEXTS = st.lists(st.integers(0, 3), max_size=60)


def shared(text: list[int], end: int) -> int:
    """How many tokens before `end` equal those before the end of the text."""
    length = 0
    while length < end and text[end - 1 - length] == text[-1 - length]:
        length += 1
    return length


def longest_match(text: list[int]) -> int:
    """By brute force, at most REACH - 1."""
    return min(REACH - 1, max((shared(text, end) for end in range(1, len(text))), default=0))


@given(TEXTS)
def test_finds_the_longest_match(text: list[int]) -> None:
    index = SuffixIndex((1, 2, 4, 8, 16), text)
    found = longest_matches(index, index, shortest=1, limit=1000)
    expected = longest_match(text)
    assert (0 if found is None else max(found.lengths)) == expected
    if found is not None:
        said = [index.following(end)[0] for end in found.ends]
        longest = [token for token, length in zip(said, found.lengths, strict=True) if length == expected]
        followers = [text[end] for end in range(1, len(text)) if shared(text, end) == expected]
        if expected < REACH - 1:
            assert longest == followers[::-1]


@given(st.lists(st.integers(0, 2), max_size=60), TEXTS)
def test_finds_the_longest_match_in_another_text(past: list[int], text: list[int]) -> None:
    index, query = SuffixIndex((1, 2, 8), [SEPARATOR, *past]), SuffixIndex((1, 2, 4, 8, 16), text)
    found = longest_matches(index, query, shortest=1, limit=1000)
    expected = max(
        (
            n
            for n in range(len(text) + 1)
            if any(past[i : i + n] == text[len(text) - n :] for i in range(len(past) - n))
        ),
        default=0,
    )
    assert (0 if found is None else max(found.lengths)) == expected


def test_an_output_that_ended_is_not_continued_by_the_next_one() -> None:
    index = SuffixIndex((2,), [SEPARATOR, 1, 2, 5, SEPARATOR, SEPARATOR, 9, 9, SEPARATOR, 1, 2, 5, 6, 7])
    query = SuffixIndex((2,), [1, 2])
    found = longest_matches(index, query, shortest=1, limit=9)
    assert found is not None
    assert [index.following(end).tolist() for end in found.ends] == [[5, 6, 7], [5]]


def test_nothing_to_say_where_nothing_followed() -> None:
    assert vote([occurred([3, 2], [[], []], True)], 5) is None


def fitted(raw: float, count: int = 1) -> float:
    odds = float((raw / (1 - raw)) ** SHARPNESS) * float(count**COUNT_WEIGHT) * exp(OFFSET)
    return odds / (1 + odds)


def test_of_two_equally_long_matches_the_more_frequent_is_surer() -> None:
    once = vote([occurred([4], [[5, 6]], False)], 2)
    thrice = vote([occurred([4, 4, 4], [[5, 6], [5, 6], [5, 6]], False)], 2)
    assert once is not None
    assert thrice is not None
    assert thrice.confidence[0] == pytest.approx(fitted(1 - UNCERTAINTY / 4, 3))
    assert thrice.confidence[0] > once.confidence[0]


@given(TEXTS, st.floats(0.0, 1.0))
def test_a_least_chance_drops_only_what_is_below_it(text: list[int], least: float) -> None:
    index = SuffixIndex((1, 2, 4, 8, 16), text)
    free = longest_matches(index, index, shortest=1, limit=16)
    gated = longest_matches(index, index, shortest=1, limit=16, min_probability=least)
    if gated is None and free is not None:
        found = vote([free], 1)
        assert found is None or found.confidence[0] < least + 1e-9


def test_confidence_is_the_share_and_the_length() -> None:
    found = vote([occurred([4, 4], [[5, 6], [5, 7]], True)], 2)
    assert found is not None
    assert found.tokens == [5, 6]
    assert found.agree == 1
    alone = vote([occurred([4], [[5, 6]], False)], 2)
    assert alone is not None
    assert alone.confidence == pytest.approx([fitted(1 - UNCERTAINTY / 4), fitted(1 - UNCERTAINTY / 5)])
    assert found.confidence[0] < alone.confidence[0]
    # Newest first: weights 1 and 1/2, so two thirds of the weight goes on with 6.
    assert found.confidence[1] == pytest.approx(fitted((2 / 3) ** DISSENT * (1 - PAST_UNCERTAINTY / 5), 2))


def test_the_requests_text_goes_round_and_a_past_output_ends() -> None:
    text = [[5, 6, 7]]
    own = vote([occurred([9], text, False)], 7)
    past = vote([occurred([9], text, True)], 7)
    assert own is not None
    assert past is not None
    assert own.tokens == [5, 6, 7, 5, 6, 7, 5]
    assert past.tokens == [5, 6, 7]
    assert past.past
    assert not own.past


def test_a_much_longer_match_in_the_past_wins() -> None:
    own, past = occurred([2], [[5]], False), occurred([6], [[8]], True)
    found = vote([own, past], 1)
    assert found is not None
    assert found.tokens == [8]
    assert (found.match_length, found.count, found.past) == (6, 2, True)


def test_it_says_where_the_chosen_text_stands() -> None:
    disputed = vote([occurred([4, 4, 4], [[5, 6], [7, 8], [7, 9]], False)], 2)
    assert disputed is not None
    assert (disputed.tokens[0], disputed.place) == (5, 100), "weights 1 and 1/2 + 1/3"
    outvoted = vote([occurred([4, 6, 4], [[5, 6], [7, 8], [7, 9]], False)], 2)
    assert outvoted is not None
    assert (outvoted.tokens[0], outvoted.place) == (7, 200)
    other = vote([occurred([2], [[5]], False), occurred([3, 6], [[1], [8]], True)], 1)
    assert other is not None
    assert (other.past, other.place) == (True, 200), "in the other index"


@given(
    st.lists(st.tuples(st.integers(1, 63), st.lists(st.integers(0, 2), max_size=9)), min_size=1, max_size=9)
)
def test_shares_equal_brute_force(found: list[tuple[int, list[int]]]) -> None:
    lengths, texts = [length for length, _ in found], [text for _, text in found]
    chosen = vote([occurred(lengths, texts, True)], REACH)
    if chosen is None:
        assert not any(texts)
        return
    weights = [4.0 ** (length - max(lengths)) / (rank + 1) for rank, length in enumerate(lengths)]
    live = set(range(len(texts)))
    first = 0.0
    for depth, token in enumerate(chosen.tokens):
        agree = {i for i in live if depth >= len(texts[i]) or texts[i][depth] == token}
        share = sum(weights[i] for i in agree) / sum(weights[i] for i in live)
        first = first or share
        assert chosen.confidence[depth] <= fitted(min(share**DISSENT, 1 - 1e-3), len(texts)) + 1e-9
        live = agree
    assert chosen.agree == pytest.approx(first)


@given(st.lists(st.integers(0, 5), max_size=12), st.integers(1, 40), st.integers(1, 30), st.booleans())
def test_one_occurrence_says_what_two_equal_ones_do_but_for_their_number(
    text: list[int], length: int, limit: int, past: bool
) -> None:
    """The short way for one and the long way for several are the same estimate."""
    alone = vote([occurred([length], [text], past)], limit)
    both = vote([occurred([length, length], [text, text], past)], limit)
    if alone is None or both is None:
        assert alone is both is None
        return
    assert list(alone.tokens) == list(both.tokens)
    trust = 1.2 if past else 0.75
    raw = [max(1 - trust / (length + i), 0.0) for i in range(len(alone.tokens))]
    assert alone.confidence == pytest.approx([fitted(share) for share in raw])
    assert both.confidence == pytest.approx([fitted(share, 2) for share in raw])
    assert (alone.match_length, alone.agree, alone.past) == (both.match_length, both.agree, both.past)
