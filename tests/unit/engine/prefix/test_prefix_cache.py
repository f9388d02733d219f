"""Which sequence a prompt gets, and how much of it is already there."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foredraft.engine.prefix.cache import MIN_COPIED_TOKENS, PrefixCache
from foredraft.sequences import common_prefix
from foredraft.testing import FakeModel
from foredraft.types import Rollback, Rows

prompts = st.lists(st.integers(0, 2), min_size=1, max_size=12)


def cache_of(sequences: int, **capabilities: object) -> tuple[FakeModel, PrefixCache]:
    model = FakeModel(sequences=sequences).with_capabilities(**capabilities)
    return model, PrefixCache(model)


def answer(model: FakeModel, cache: PrefixCache, prompt: list[int], scope: str = "") -> tuple[int, int]:
    """Compute a prompt from start to finish; returns its (sequence, reused tokens)."""
    place = cache.acquire(prompt, scope)
    assert place is not None
    seq, shared = place
    assert model.tokens(seq) == prompt[:shared], "what is reused is what is there"
    model.forward([Rows(seq, shared, prompt[shared:], 1)])
    cache.release(seq, prompt)
    return place


@given(a=prompts, b=prompts)
def test_common_prefix_is_the_longest(a: list[int], b: list[int]) -> None:
    shared = common_prefix(a, b)
    assert a[:shared] == b[:shared]
    assert shared == min(len(a), len(b)) or a[shared] != b[shared]


def test_at_least_one_token_is_left_to_compute() -> None:
    model, cache = cache_of(1)
    assert answer(model, cache, [1, 2, 3]) == (0, 0)
    assert answer(model, cache, [1, 2, 3]) == (0, 2)
    assert answer(model, cache, [1]) == (0, 0)


def test_the_next_turn_continues_where_the_last_ended() -> None:
    model, cache = cache_of(2)
    answer(model, cache, [1, 2, 3])
    assert answer(model, cache, [1, 2, 3, 4, 5]) == (0, 3)


def test_an_edited_history_is_reused_up_to_the_edit() -> None:
    model, cache = cache_of(1)
    answer(model, cache, [1, 2, 3, 4])
    assert answer(model, cache, [1, 2, 9, 9, 9]) == (0, 2)


def test_the_sequence_that_shares_most_is_taken() -> None:
    model, cache = cache_of(3)
    places = [cache.acquire(prompt) for prompt in ([1, 2, 9], [1, 2, 3, 4], [5])]
    for place, prompt in zip(places, ([1, 2, 9], [1, 2, 3, 4], [5]), strict=True):
        assert place is not None
        model.forward([Rows(place[0], 0, prompt, 1)])
        cache.release(place[0], prompt)
    assert cache.acquire([1, 2, 3, 7]) == (1, 3)


def test_without_a_shared_prefix_the_longest_unused_is_taken() -> None:
    model, cache = cache_of(3)
    for token in (10, 20, 30):
        answer(model, cache, [token, token])
    answer(model, cache, [10, 10, 1])
    assert answer(model, cache, [40]) == (1, 0)


def test_a_short_common_beginning_does_not_cost_another_conversation_its_cache() -> None:
    model, cache = cache_of(2)
    answer(model, cache, [1, *range(10, 60)])
    answer(model, cache, [1, 100, 101])
    assert answer(model, cache, [1, *range(10, 60), 2])[1] == 51


def test_busy_sequences_are_left_alone() -> None:
    model, cache = cache_of(2)
    first = cache.acquire([1, 2, 3])
    second = cache.acquire([1, 2, 3])
    assert first is not None
    assert second is not None
    assert first[0] != second[0]
    assert cache.acquire([1]) is None
    cache.release(first[0], [])
    assert cache.acquire([7]) == (first[0], 0)
    assert model.length(first[0]) == 0


def test_another_scope_never_finds_out_what_was_asked() -> None:
    model, cache = cache_of(1)
    answer(model, cache, [1, 2, 3], "alice")
    assert answer(model, cache, [1, 2, 3], "bob") == (0, 0)
    assert answer(model, cache, [1, 2, 3], "alice") == (0, 0), "bob's use has replaced it"
    assert answer(model, cache, [1, 2, 3], "alice") == (0, 2)


def test_only_what_was_computed_counts_as_cached() -> None:
    model, cache = cache_of(1)
    place = cache.acquire([1, 2, 3, 4])
    assert place == (0, 0)
    model.forward([Rows(0, 0, [1, 2], 0)])
    cache.release(0, [1, 2])
    assert cache.acquire([1, 2, 3, 4]) == (0, 2)


def test_rows_left_by_an_interrupted_round_are_dropped() -> None:
    model, cache = cache_of(1)
    cache.acquire([1, 2])
    model.forward([Rows(0, 0, [1, 2, 8, 8], 1)])
    cache.release(0, [1, 2])
    assert cache.acquire([1, 2, 8, 8, 8]) == (0, 2)
    assert model.tokens(0) == [1, 2]


def test_a_failed_request_leaves_nothing_to_reuse() -> None:
    model, cache = cache_of(1)
    answer(model, cache, [1, 2, 3])
    cache.acquire([1, 2, 3])
    cache.drop(0)
    assert model.length(0) == 0
    assert cache.acquire([1, 2, 3]) == (0, 0)


@pytest.mark.parametrize("rollback", [Rollback.SNAPSHOT, Rollback.BOUNDED])
def test_a_model_that_cannot_go_back_reuses_whole_sequences_only(rollback: Rollback) -> None:
    model, cache = cache_of(1, rollback=rollback, rollback_bound=4)
    answer(model, cache, [1, 2, 3])
    assert answer(model, cache, [1, 2, 3, 4]) == (0, 3)
    assert answer(model, cache, [1, 2, 3, 9]) == (0, 0)


def test_a_sliding_window_is_kept_in_place_and_not_copied_from_behind_it() -> None:
    window = MIN_COPIED_TOKENS
    model, cache = cache_of(2, window=window)
    long = list(range(3 * window))
    answer(model, cache, long)
    assert answer(model, cache, [*long[: window + 1], 1, 2]) == (1, 0), "a copy would lack cells"
    assert answer(model, cache, [*long[: 2 * window], 1]) == (0, 2 * window), "in place all cells are there"


@given(
    st.lists(st.tuples(prompts, st.sampled_from(["", "bob"])), max_size=12),
    st.integers(1, 3),
    st.sampled_from([0, 2]),
)
def test_what_is_reused_is_always_the_prompt_s_own_beginning(
    requests: list[tuple[list[int], str]], sequences: int, window: int
) -> None:
    model, cache = cache_of(sequences, window=window)
    for prompt, scope in requests:
        seq, shared = answer(model, cache, prompt, scope)
        assert model.tokens(seq) == prompt
        assert shared < len(prompt)
    assert None not in [cache.acquire([1]) for _ in range(sequences)], "all are free again"


def test_the_prefix_that_was_not_used_for_the_longest_time_is_evicted_first() -> None:
    model, cache = cache_of(3)
    for token in (10, 20, 30):
        answer(model, cache, [token] * 5)
    answer(model, cache, [10] * 6)
    held = cache.acquire([20] * 5)
    assert held == (1, 4)
    assert cache.evict()
    assert [model.length(seq) for seq in range(3)] == [6, 4, 0]
    assert cache.evict()
    assert not cache.evict(), "a busy sequence is not touched"
    assert [model.length(seq) for seq in range(3)] == [0, 4, 0]
    assert cache.acquire([10] * 6) in [(0, 0), (2, 0)]


# --- which of the free sequences -------------------------------------------------------------------------


def places(cache: PrefixCache, *prompts: list[int]) -> list[int]:
    found = [cache.acquire(prompt) for prompt in prompts]
    assert None not in found
    return [place[0] for place in found if place is not None]


def test_a_place_that_became_free_in_between_is_taken_before_one_at_the_end() -> None:
    _, cache = cache_of(4)
    assert places(cache, [1], [2], [3]) == [0, 1, 2]
    cache.drop(1)
    assert places(cache, [4]) == [1], "0 1 2 share a pass, 0 2 3 do not"


def test_the_empty_place_next_to_most_running_ones_is_taken() -> None:
    _, cache = cache_of(6)
    assert places(cache, *([token] for token in range(6))) == [0, 1, 2, 3, 4, 5]
    for seq in (0, 1, 4):
        cache.drop(seq)
    assert places(cache, [7]) == [4], "between 3 and 5: one run instead of two"
    assert places(cache, [7]) == [1], "next to 2, not on its own at 0"
    cache.drop(5)
    assert places(cache, [7]) == [0], "of two at an end the one with the lower number"


def test_with_nothing_running_the_lowest_empty_place_is_taken() -> None:
    model, cache = cache_of(3)
    for token in (10, 20, 30):
        answer(model, cache, [token] * 5)
    for seq in (2, 0, 1):
        cache.drop(seq)
    assert places(cache, [40], [50]) == [0, 1]


def test_no_prefix_is_given_up_for_a_place_beside_the_running_ones() -> None:
    model, cache = cache_of(4)
    for place, token in zip(places(cache, [10], [20], [30]), (10, 20, 30), strict=True):
        model.forward([Rows(place, 0, [token] * 5, 1)])
        cache.release(place, [token] * 5)
    assert cache.acquire([30] * 6) == (2, 5), "its own prefix, wherever it is"
    assert cache.acquire([40]) == (3, 0), "the empty one, and not one that holds a prefix"
    assert cache.acquire([50]) == (0, 0), "of those that hold one the longest unused, not the nearest"
    assert cache.acquire([20] * 6) == (1, 5)


@given(st.lists(st.integers(0, 7), max_size=40), st.integers(1, 6))
def test_while_nothing_is_kept_running_ones_have_as_few_gaps_as_can_be(
    ends: list[int], sequences: int
) -> None:
    """One by one requests begin, and end without leaving anything: then none begins beside a free gap."""
    _, cache = cache_of(sequences)
    running: list[int] = []
    for end in ends:
        if end < len(running):
            cache.drop(running.pop(end))
        elif len(running) < sequences:
            before = runs(running)
            running += places(cache, [1])
            free = set(range(sequences)) - set(running[:-1])
            assert runs(running) - before == min(runs([*running[:-1], seq]) - before for seq in free)


def runs(seqs: list[int]) -> int:
    """Groups of sequences whose numbers follow one another."""
    return sum(seq - 1 not in seqs for seq in seqs)
