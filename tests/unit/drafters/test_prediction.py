from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foredraft.drafters.prediction import GRAMS, GramPlaces, PredictionDrafter, create
from foredraft.errors import SpeculationStringError
from foredraft.protocols import RequestView
from foredraft.testing import drafter_context
from foredraft.types import Draft, DraftLimit, Outcome

EXPECTED = tuple(range(10, 60))
TEXTS = st.lists(st.integers(0, 4), max_size=40)


def start(
    drafter: PredictionDrafter, prediction: tuple[int, ...] = EXPECTED, prompt: list[int] | None = None
) -> RequestView:
    tokens = [1, 2, 3] if prompt is None else list(prompt)
    request = RequestView(1, tokens, prompt_length=len(tokens), prediction=prediction)
    drafter.start(request)
    return request


def commit(
    drafter: PredictionDrafter, request: RequestView, tokens: list[int], kept: int | None = None
) -> None:
    kept = len(request.tokens) if kept is None else kept
    request.tokens[kept:] = tokens
    drafter.observe(request, Outcome(kept, tuple(tokens)))


def draft(drafter: PredictionDrafter, request: RequestView, limit: int = 63) -> Draft | None:
    return drafter.draft([(request, DraftLimit(limit))])[0]


def after(output: list[int], prediction: tuple[int, ...] = EXPECTED) -> tuple[int, ...]:
    """What is drafted after an output; nothing is ()."""
    drafter = PredictionDrafter()
    request = start(drafter, prediction)
    commit(drafter, request, output)
    found = draft(drafter, request)
    return found.tokens if found else ()


def test_drafts_the_prediction_from_its_beginning() -> None:
    drafter = PredictionDrafter()
    found = draft(drafter, start(drafter))
    assert found is not None
    assert found.tokens == EXPECTED
    assert found.features == {"match_length": 0, "since_sync": 0}
    assert len(found.confidence) == len(found)


def test_goes_on_where_the_output_is() -> None:
    drafter = PredictionDrafter()
    request = start(drafter)
    commit(drafter, request, [10, 11, 12])
    found = draft(drafter, request, 4)
    assert found is not None
    assert found.tokens == (13, 14, 15, 16)
    assert found.features["since_sync"] == 3


def test_nothing_without_a_prediction_or_past_its_end() -> None:
    drafter = PredictionDrafter()
    request = start(drafter, ())
    assert draft(drafter, request) is None
    commit(drafter, request, [10, 11])
    assert draft(drafter, request) is None
    assert after(list(EXPECTED)) == ()


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        ([10, 11, 12, 90], EXPECTED[4:]),  # one token replaced: a guess
        ([10, 11, 12, 90, 91], ()),  # lost
        ([10, 11, 12, 90, 91, 13], EXPECTED[4:]),  # inserted
        ([10, 11, 12, 90, 91, 14], EXPECTED[5:]),  # replaced by more
        ([10, 11, 12, 40], EXPECTED[31:]),  # deleted
        ([10, 11, 12, 13, 14, 15, 90, 11, 12], EXPECTED[3:]),  # back
    ],
)
def test_finds_its_place_again(output: list[int], expected: tuple[int, ...]) -> None:
    assert after(output) == expected


def test_prefers_the_longest_gram_then_the_nearest_ahead() -> None:
    #             0  1  2  3  4  5  6  7  8  9 10 11 12 13 14 15
    prediction = (5, 1, 2, 6, 9, 9, 1, 2, 7, 9, 9, 3, 1, 2, 8, 4)
    assert after([5, 99, 1, 2], prediction) == prediction[3:]
    assert after([5, 1, 2, 6, 99, 1, 2], prediction) == prediction[8:]
    assert after([5, 1, 2, 6, 99, 3, 1, 2], prediction) == prediction[14:]
    assert (
        after([*prediction, 98, 99, 1, 2], prediction) == prediction[14:]
    )  # nothing ahead: the nearest behind


def test_a_common_token_far_away_is_not_believed() -> None:
    prediction = (1, *range(10, 60), 7, *range(100, 120), 7, 130)
    assert after([1, 98, 99, 7], prediction) == ()
    assert after([1, 98, 99, 7, 130], prediction) == ()
    assert after([1, 98, 99, 55], prediction) == prediction[47:]


def test_confidence_follows_recent_acceptance() -> None:
    drafter = PredictionDrafter()
    request = start(drafter)
    fresh = draft(drafter, request)
    commit(drafter, request, [*EXPECTED[:20]])
    followed = draft(drafter, request)
    commit(drafter, request, [90, 91, 34, 92, 93, 46])
    shaken = draft(drafter, request)
    assert fresh is not None
    assert followed is not None
    assert shaken is not None
    assert fresh.confidence[0] < followed.confidence[0]
    assert shaken.confidence[0] < followed.confidence[0]
    assert shaken.confidence[-1] < fresh.confidence[len(shaken) - 1] < followed.confidence[len(shaken) - 1]
    assert list(fresh.confidence) == sorted(fresh.confidence)


@given(TEXTS.map(tuple), TEXTS, st.data())
def test_state_is_a_function_of_prediction_and_history(
    prediction: tuple[int, ...], output: list[int], data: st.DataObject
) -> None:
    drafter, whole = PredictionDrafter(), PredictionDrafter()
    request = start(drafter, prediction)
    rest = list(output)
    while rest:
        size = data.draw(st.integers(1, len(rest)))
        commit(drafter, request, rest[:size])
        rest = rest[size:]
    request_at_once = start(whole, prediction)
    commit(whole, request_at_once, output)
    assert draft(drafter, request) == draft(whole, request_at_once)
    kept = data.draw(st.integers(0, len(request.tokens)))
    for each, view in ((drafter, request), (whole, request_at_once)):
        commit(each, view, [4, 3], kept=kept)
    fresh = PredictionDrafter()
    again = RequestView(1, list(request.tokens), prompt_length=3, prediction=prediction)
    fresh.start(again)
    assert draft(drafter, request) == draft(whole, request_at_once) == draft(fresh, again)


@given(TEXTS, st.sampled_from(GRAMS), st.integers(0, 45), st.data())
def test_nearest_equals_brute_force(text: list[int], width: int, place: int, data: st.DataObject) -> None:
    gram = data.draw(st.lists(st.integers(0, 4), min_size=width, max_size=width))
    ends = [end for end in range(width, len(text) + 1) if text[end - width : end] == gram]
    ahead = [end for end in ends if end >= place]
    expected = ahead[0] if ahead else (ends[-1] if ends else None)
    found = GramPlaces(text).nearest(gram, place)
    assert found == (None if expected is None else (expected, len(ends) == 1))


def test_a_new_turn_starts_over() -> None:
    drafter = PredictionDrafter()
    request = start(drafter)
    commit(drafter, request, [10, 11, 12, 13])
    request.prompt_length = len(request.tokens) + 1
    commit(drafter, request, [5])
    found = draft(drafter, request, 2)
    assert found is not None
    assert found.tokens == (10, 11)
    request.prediction = (7, 8, 9)
    commit(drafter, request, [7])
    found = draft(drafter, request)
    assert found is not None
    assert found.tokens == (8, 9)


def test_a_prediction_may_arrive_with_a_later_turn() -> None:
    drafter = PredictionDrafter()
    request = start(drafter, ())
    commit(drafter, request, [10])
    request.prediction, request.prompt_length = EXPECTED, len(request.tokens) + 1
    commit(drafter, request, [5])
    assert draft(drafter, request) is not None


def test_options() -> None:
    drafter = create(drafter_context(), {"max": "3"})
    assert isinstance(drafter, PredictionDrafter)
    found = draft(drafter, start(drafter))
    assert found is not None
    assert len(found) == 3
    for options in ({"max": "0"}, {"n": "3"}, {"max": "many"}):
        with pytest.raises(SpeculationStringError):
            create(drafter_context(), options)


def test_it_drafts_for_requests_that_bring_a_prediction() -> None:
    drafter = PredictionDrafter()
    assert draft(drafter, start(drafter)) is not None
    assert draft(drafter, start(drafter, ())) is None
