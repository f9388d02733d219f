"""`RepeatedEnd` and `match_length`: what they say is repeated is repeated, however the text is read."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from drafter_cases import commit, draft, start
from foredraft.drafters.match_length import LONGEST_COUNTED, MOST_FOLLOWED, RepeatedEnd
from foredraft.drafters.suffix import SuffixDrafter, create
from foredraft.drafters.suffix_index import SuffixIndex
from foredraft.testing import drafter_context
from foredraft.types import Outcome

TEXTS = st.lists(st.integers(0, 3), max_size=3 * MOST_FOLLOWED)


class Growing:
    """A text, and the lengths that are found while it grows."""

    def __init__(self, tokens: list[int]) -> None:
        self.index = SuffixIndex((1, 2), tokens)
        self._end = RepeatedEnd(self.index)

    def length(self, *tokens: int) -> int:
        self.index.extend(tokens)
        return self._end.length()


def occurs(end: list[int], tokens: list[int]) -> bool:
    """Whether the tokens occur in `tokens` before their last place."""
    return any(tokens[at : at + len(end)] == end for at in range(len(tokens) - len(end)))


@given(TEXTS, st.lists(st.integers(1, 2 * MOST_FOLLOWED), max_size=8))
def test_what_is_found_is_repeated_and_a_repeated_pair_is_found(text: list[int], cuts: list[int]) -> None:
    growing = Growing([])
    for size in [*sorted(min(cut, len(text)) for cut in cuts), len(text)]:
        tokens = text[:size]
        length = growing.length(*tokens[len(growing.index) :])
        assert growing.length() == length, "nothing new was read"
        if length:
            assert length >= 2
            assert occurs(tokens[size - length :], tokens)
        else:
            assert size < 2 or not occurs(tokens[-2:], tokens)


def test_a_match_grows_token_by_token() -> None:
    source = list(range(100))
    growing = Growing([*source, 500])
    found = [growing.length(token) for token in source]
    assert found == [0, *range(2, 101)], "longer than what is counted when a match begins"


def test_a_new_match_is_counted_backwards() -> None:
    source = list(range(100))
    assert Growing([*source, 500, *source[:20]]).length() == 20
    assert Growing([*source, 500, *source]).length() == LONGEST_COUNTED


def test_a_run_of_one_token_repeats_itself() -> None:
    growing = Growing([7])
    assert [growing.length(7) for _ in range(4)] == [0, 2, 3, 4]


def test_a_match_is_followed_until_it_ends_and_then_the_last_two_tokens_count() -> None:
    growing = Growing([1, 2, 3, 4, 9, 8, 3])
    assert [growing.length(token) for token in (4, 5, 9, 1, 2, 3, 4)] == [2, 0, 0, 0, 2, 3, 4]
    assert growing.length(5) == 3, "not as there, but as after the newest 3, 4"
    assert growing.length(6) == 0


def test_short_texts() -> None:
    growing = Growing([])
    assert [growing.length(), growing.length(5), growing.length(5), growing.length(5)] == [0, 0, 0, 2]


def test_the_suffix_drafter_answers_without_having_been_told() -> None:
    told, untold, source = SuffixDrafter(), SuffixDrafter(), list(range(20))
    requests = [start(drafter, [*source, 500]) for drafter in (told, untold)]
    for token, expected in zip(source[:5], (0, 2, 3, 4, 5), strict=True):
        commit(told, requests[0], [token])
        requests[1].tokens.append(token)
        assert told.match_length(requests[0]) == untold.match_length(requests[1]) == expected
    requests[1].tokens.pop()
    commit(untold, requests[1], [4, 5], kept=21 + 4)
    commit(told, requests[0], [5])
    assert draft(told, requests[0]) == draft(untold, requests[1])


def test_text_that_was_read_before_it_was_told_and_then_replaced_leaves_no_trace() -> None:
    drafter = SuffixDrafter()
    request = start(drafter, [1, 2, 3, 4, 1, 2])
    request.tokens += [7, 8, 9]
    assert drafter.match_length(request) == 0
    del request.tokens[6:]
    assert drafter.match_length(request) == 0, "it is shorter than what was read"
    commit(drafter, request, [3, 1, 2, 3])
    assert drafter.match_length(request) == 3
    found = draft(drafter, request)
    assert found is not None
    assert found.tokens[0] == 1


def test_after_a_removal_the_length_is_that_of_what_is_left() -> None:
    drafter = SuffixDrafter()
    request = start(drafter, [1, 2, 3, 4, 1, 2, 3])
    assert drafter.match_length(request) == 3
    commit(drafter, request, [2, 3, 4], kept=5)
    assert drafter.match_length(request) == 4
    request.tokens[3:] = [9]
    assert drafter.match_length(request) == 0, "it was not told yet"
    commit(drafter, request, [9, 1, 2], kept=3)
    assert drafter.match_length(request) == 2


def test_the_next_turn_s_prompt_is_no_part_of_the_output_before_it(tmp_path: Path) -> None:
    """It may have been read before the drafter is told of it."""
    drafter, output = create(drafter_context(store=tmp_path), {"min-p": "0"}), list(range(100, 140))
    assert isinstance(drafter, SuffixDrafter)
    request = start(drafter, [1, 2])
    commit(drafter, request, output)
    request.tokens += [5, 6]
    request.prompt_length = len(request.tokens)
    drafter.match_length(request)
    drafter.observe(request, Outcome(len(request.tokens) - 2, (5, 6)))
    found = draft(drafter, start(drafter, [7, *output[:5]], number=2))
    assert found is not None
    assert found.tokens == tuple(output[5:])
    drafter.close()
