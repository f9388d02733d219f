"""How much of a text's end stood in it before: read token by token, it is what a search would find."""

from __future__ import annotations

import random

import pytest

from foredraft.planner.tables.echo import BULK, LONGEST, WIDTH, Echo
from foredraft.protocols import RequestView


def lengths(text: list[int], *, prompt: int = 0) -> list[int]:
    """The length after each token that follows the first `prompt` ones."""
    echo, view = Echo(), RequestView(1, text[:prompt], prompt_length=prompt)
    found = []
    for token in text[prompt:]:
        view.tokens.append(token)
        found.append(echo.length(view))
    return found


def longest(text: list[int]) -> int:
    """Of all matches of a text's end with what comes before an earlier place."""
    best = 0
    for place in range(1, len(text)):
        length = 0
        while length < place and text[place - 1 - length] == text[-1 - length]:
            length += 1
        best = max(best, length)
    return best if best >= WIDTH else 0


def test_a_copy_is_as_long_as_it_is() -> None:
    passage = list(range(100, 200))
    found = lengths([*passage, 7, 8, 9, *passage[30:60]], prompt=100)
    assert found == [0, 0, 0, 0, *range(2, 31)]


def test_a_copy_ends_with_the_first_other_token() -> None:
    assert lengths([1, 2, 3, 4, 5, 1, 2, 3, 9, 4, 5]) == [0, 0, 0, 0, 0, 0, 2, 3, 0, 0, 2]


def test_a_text_that_repeats_itself_goes_on_with_itself() -> None:
    assert lengths([5] * 6) == [0, 0, 2, 3, 4, 5]


@pytest.mark.parametrize("prompt", [0, 1, 40, 2 * BULK])
@pytest.mark.parametrize("alphabet", [2, 30])
def test_it_never_claims_more_than_there_is(prompt: int, alphabet: int) -> None:
    rng = random.Random(prompt + alphabet)
    text = rng.choices(range(alphabet), k=300)
    found = lengths(text, prompt=prompt)
    most = [longest(text[:end]) for end in range(prompt + 1, 301)]
    assert all(0 <= length <= bound for length, bound in zip(found, most, strict=True))
    assert sum(length > 0 for length in found) > 0.9 * sum(bound > 0 for bound in most)


def test_many_tokens_at_once_are_read_as_one_by_one() -> None:
    """A prompt, and the next turn of a conversation. Where the copy began is not seen, so it is measured."""
    passage = list(range(1000, 1200))
    echo, view = Echo(), RequestView(1, [*passage, 1, 2, *passage[:20]])
    assert echo.length(view) == 20
    view.tokens.extend([*range(BULK + 1), *passage[50:90]])
    assert echo.length(view) == 40
    view.tokens.append(passage[90])
    assert echo.length(view) == 41
    view.tokens.extend([3, 4, *passage[:60]])
    assert LONGEST <= echo.length(view) <= 60, "and at most so far"


def test_a_text_that_outgrows_its_table_is_still_known() -> None:
    passage = list(range(100))
    assert lengths([*passage, *range(5000, 9000), *passage[10:20]])[-1] == 10


def test_a_text_of_which_a_part_was_removed_is_read_anew() -> None:
    echo, view = Echo(), RequestView(1, [*range(50), *range(20)])
    assert echo.length(view) == 20
    del view.tokens[30:]
    assert echo.length(view) == 0
    view.tokens.extend(range(5))
    assert echo.length(view) == 5


def test_requests_do_not_share_a_text() -> None:
    echo, passage = Echo(), list(range(50))
    assert echo.length(RequestView(1, [*passage, *passage])) > 0
    assert echo.length(RequestView(2, passage)) == 0
    echo.forget(1)
    echo.forget(3)
    assert echo.length(RequestView(1, passage[:10])) == 0


@pytest.mark.parametrize("tokens", [[], [3]])
def test_texts_too_short_to_match(tokens: list[int]) -> None:
    assert Echo().length(RequestView(1, tokens)) == 0
