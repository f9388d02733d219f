from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foredraft.drafters.recycle_table import MAX_BYTES, MOST_COUNTED, SuccessorTable
from foredraft.drafters.scope_key import ScopeKey, ScopeKeys

SCOPE = ScopeKeys().of("")
texts = st.lists(st.integers(0, 5), max_size=60)


def table(k: int = 4, max_bytes: int = 1 << 18) -> SuccessorTable:
    return SuccessorTable(k, max_bytes)


def after(known: SuccessorTable, last: int, before: int = -1, request: int = 1) -> list[int]:
    found = known.find(before, last, SCOPE, request)
    return found.tokens if found else []


def followers(text: list[int], context: tuple[int, ...]) -> list[int]:
    """What followed the context, newest first, each once: from its definition."""
    n = len(context)
    found = [text[i] for i in range(n, len(text)) if tuple(text[i - n : i]) == context]
    return list(dict.fromkeys(reversed(found)))


@given(texts)
def test_the_newest_follower_comes_first(text: list[int]) -> None:
    known = table()
    known.follow(text, 0, SCOPE, 1)
    for last in range(6):
        assert after(known, last) == followers(text, (last,))[:4]
        for before in range(6):
            assert after(known, last, before) == followers(text, (before, last))[:4]


@given(texts, st.integers(0, 60))
def test_learning_a_text_at_once_is_like_learning_it_token_by_token(text: list[int], start: int) -> None:
    once, step = table(), table()
    once.follow_all(text, SCOPE, 1)
    step.follow(text[:start], 0, SCOPE, 1)
    step.follow(text, min(start, len(text)), SCOPE, 1)
    for last in range(6):
        for before in range(-1, 6):
            assert once.find(before, last, SCOPE, 1) == step.find(before, last, SCOPE, 1)


@given(texts, texts)
def test_a_text_learned_at_once_comes_before_an_earlier_one(earlier: list[int], text: list[int]) -> None:
    known = table()
    known.follow(earlier, 0, SCOPE, 1)
    known.follow_all(text, SCOPE, 2)
    for last in range(6):
        new, old = followers(text, (last,)), followers(earlier, (last,))
        expected = [*new, *(token for token in old if token not in new)]
        assert after(known, last) == expected[:4]


def test_it_counts_how_often_in_a_row_the_first_one_followed() -> None:
    known = table()
    for text, times in (([1, 2], 1), ([1, 2], 2), ([1, 3], 1), ([1, 2], 1), ([1, 2] * 20, MOST_COUNTED)):
        known.follow(text, 0, SCOPE, 1)
        found = known.find(-1, 1, SCOPE, 1)
        assert found is not None
        assert found.times == times


def test_a_text_read_again_does_not_count_twice() -> None:
    known = table()
    for request in (1, 2, 3):
        known.follow_all([1, 2, 1, 2], SCOPE, request)
    found = known.find(-1, 1, SCOPE, 3)
    assert found is not None
    assert (found.tokens, found.times, found.own) == ([2], 2, True)
    other = known.find(-1, 1, SCOPE, 2)
    assert other is not None
    assert not other.own


@given(texts, texts)
def test_scopes_know_nothing_of_each_other(first: list[int], second: list[int]) -> None:
    keys = ScopeKeys()
    one, two = keys.of("one"), keys.of("two")
    known, alone = table(max_bytes=1 << 22), table(max_bytes=1 << 22)
    known.follow_all(first, one, 1)
    known.follow([2, 3, 4], 0, one, 1)
    for learner in (known, alone):
        learner.follow(second, 0, two, 2)
    for last in range(6):
        for before in range(-1, 6):
            assert known.find(before, last, two, 2) == alone.find(before, last, two, 2)


def test_scope_keys_differ_by_scope_and_process() -> None:
    keys, others = ScopeKeys(), ScopeKeys()
    assert keys.of("a") == keys.of("a")
    assert keys.of("a").offset != keys.of("b").offset
    assert keys.of("a").secret != keys.of("b").secret
    assert keys.of("a").secret != others.of("a").secret


@pytest.mark.parametrize("at_once", [False, True])
def test_a_row_in_the_same_place_is_never_mistaken(at_once: bool) -> None:
    crowded = table(max_bytes=2 * 28)  # two places: nearly every lookup lands in one that is taken
    assert crowded.rows == 2
    text = [(7 * i * i) % 50 for i in range(300)]
    if at_once:
        crowded.follow_all(text, SCOPE, 1)
    else:
        crowded.follow(text, 0, SCOPE, 1)
    found = [(last, after(crowded, last)) for last in range(50)]
    assert sum(bool(tokens) for _, tokens in found) <= 2
    for last, tokens in found:
        assert tokens == followers(text, (last,))[: len(tokens)]


@pytest.mark.parametrize("k", [1, 4, 8, 15])
def test_memory_is_bounded(k: int) -> None:
    known = SuccessorTable(k)
    assert MAX_BYTES / 2 < known.nbytes <= MAX_BYTES == 8_000_000
    known.follow_all([0, 2**31 - 2, 0, 2**31 - 2], ScopeKey(0, 0), 2**40 + 1)  # the largest there are
    found = known.find(0, 2**31 - 2, ScopeKey(0, 0), 2**40 + 1)
    assert found is not None
    assert (found.tokens, found.own) == ([0], True)
