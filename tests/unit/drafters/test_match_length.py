"""`RepeatedEnd`: what it says is repeated is repeated, however the text is read."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from foredraft.drafters.match_length import BULK_TOKENS, LONGEST_COUNTED, RepeatedEnd
from foredraft.drafters.suffix import SuffixDrafter
from foredraft.protocols import RequestView
from foredraft.types import DraftLimit, Outcome

TEXTS = st.lists(st.integers(0, 3), max_size=3 * BULK_TOKENS)


def occurs(end: list[int], tokens: list[int]) -> bool:
    """Whether the tokens occur in `tokens` before their last place."""
    return any(tokens[at : at + len(end)] == end for at in range(len(tokens) - len(end)))


@given(TEXTS, st.lists(st.integers(1, 2 * BULK_TOKENS), max_size=8))
def test_what_is_found_is_repeated_and_a_repeated_pair_is_found(text: list[int], cuts: list[int]) -> None:
    end = RepeatedEnd()
    for size in [*sorted(min(cut, len(text)) for cut in cuts), len(text)]:
        tokens = text[:size]
        length = end.length(tokens)
        assert end.length(tokens) == length, "nothing new was read"
        if length:
            assert length >= 2
            assert occurs(tokens[size - length :], tokens)
        else:
            assert size < 2 or not occurs(tokens[-2:], tokens)


def test_a_match_grows_token_by_token() -> None:
    source = list(range(100))
    tokens, end = [*source, 500], RepeatedEnd()
    found = []
    for token in source:
        tokens.append(token)
        found.append(end.length(tokens))
    assert found == [0, *range(2, 101)], "longer than what is counted when a match begins"


def test_a_new_match_is_counted_backwards() -> None:
    source = list(range(100))
    assert RepeatedEnd().length([*source, 500, *source[:20]]) == 20
    assert RepeatedEnd().length([*source, 500, *source]) == LONGEST_COUNTED


def test_a_run_of_one_token_repeats_itself() -> None:
    tokens, end = [7], RepeatedEnd()
    found = []
    for _ in range(4):
        tokens.append(7)
        found.append(end.length(tokens))
    assert found == [0, 2, 3, 4]


def test_a_match_is_followed_until_it_ends_and_then_the_last_two_tokens_count() -> None:
    tokens = [1, 2, 3, 4, 9, 8, 3, 4, 5, 9, 1, 2, 3, 4]
    end = RepeatedEnd()
    assert end.length(tokens[:8]) == 2
    assert end.length(tokens) == 4, "1, 2 came only once before, and was followed"
    assert end.length([*tokens, 5]) == 3, "3, 4, 5 instead"
    assert end.length([*tokens, 6]) == 0
    assert end.length([*tokens, 6, 9, 1]) == 2
    assert end.length([*tokens, 6, 9, 1, 2]) == 3


def test_empty_and_short_texts() -> None:
    end = RepeatedEnd()
    assert [end.length([]), end.length([5]), end.length([5, 5]), end.length([5, 5, 5])] == [0, 0, 0, 2]


def test_a_text_of_which_a_part_was_removed_is_read_anew() -> None:
    rng = random.Random(3)
    text = [rng.randrange(1000) for _ in range(300)]
    end = RepeatedEnd()
    assert end.length([*text, *text[:10]]) == 10
    assert end.length([*text[:20], *text[:5]]) == 5, "shorter"
    assert end.length([*text[100:], *text[200:209]]) == 9, "another text, and longer"


def test_the_suffix_drafter_answers_without_having_been_told() -> None:
    drafter, source = SuffixDrafter(), list(range(20))
    request = RequestView(1, [*source, 500], prompt_length=21)
    drafter.start(request)
    found = []
    for token in source[:5]:
        request.tokens.append(token)
        found.append(drafter.match_length(request))
    assert found == [0, 2, 3, 4, 5]
    drafter.observe(request, Outcome(21, tuple(source[:5])))
    [draft] = drafter.draft([(request, DraftLimit(4))])
    assert draft is not None
    assert draft.tokens == (5, 6, 7, 8)
    request.tokens[21:] = [3, 4]
    drafter.observe(request, Outcome(21, (3, 4)))
    assert drafter.match_length(request) == 2
    drafter.stop(request)
