"""Reading a history before drafting, and whether the rest of the answer is worth it."""

from __future__ import annotations

import pytest

from foredraft.planner.catchup import CHUNK, SKIPPED, Answers, CatchUp
from foredraft.protocols import RequestView
from foredraft.types import SamplingParams


def request(length: int, *, prompt: int = 0, number: int = 1, most: int | None = None) -> RequestView:
    return RequestView(number, [0] * length, SamplingParams(max_tokens=most), prompt_length=prompt)


def test_a_request_is_behind_until_it_was_asked_and_when_it_was_not_asked_for_a_while() -> None:
    reading = CatchUp()
    assert reading.behind(request(1))
    reading.asked(1, 100)
    assert not reading.behind(request(100 + SKIPPED))
    assert reading.behind(request(101 + SKIPPED))
    assert reading.behind(request(100, number=2))
    reading.forget(1)
    assert reading.behind(request(100))


def test_the_cost_grows_with_what_is_unread() -> None:
    reading = CatchUp()
    assert reading.cost(request(10 * CHUNK), 0.0) == 0.0, "it was never measured"
    reading.took(9.0, 4, reading.asked(1, 4 * CHUNK))
    assert reading.cost(request(4 * CHUNK), 0.25) == 0.0
    assert reading.cost(request(6 * CHUNK), 0.25) == pytest.approx(2 * 2.0)
    assert reading.cost(request(10 * CHUNK, number=2), 0.25) == pytest.approx(10 * 2.0)


def test_as_much_again_is_expected_until_longer_answers_were_seen() -> None:
    answers = Answers()
    assert answers.remaining(request(150, prompt=100)) == 50
    assert answers.remaining(request(150, prompt=100, most=60)) == 10
    for length in (200, 400):
        answers.ended(request(100 + length, prompt=100))
    assert answers.remaining(request(100, prompt=100)) == 300
    assert answers.remaining(request(400, prompt=100)) == 300, "one longer answer does not speak for all"
