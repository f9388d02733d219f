"""The estimated speedup: what is compared with what, and that noise is not taken for a difference."""

from __future__ import annotations

import random

import pytest

from foredraft.engine.stats import PlainRound, PlainRounds, Speedup

STEADY = PlainRound(10.0, 0.0, 64)
NOISY = PlainRound(10.0, 1.0, 64)


def plain_rounds(*ms: float, requests: int = 1) -> PlainRounds:
    plain = PlainRounds()
    for each in ms:
        plain.add(requests, each)
    return plain


def test_one_plain_round_does_not_tell_how_much_they_vary() -> None:
    assert plain_rounds().of(1) is None
    assert plain_rounds(10.0).of(1) is None
    assert plain_rounds(10.0, 10.0).of(1) == PlainRound(10.0, 0.0, 2)
    assert plain_rounds(10.0, 10.0).of(2) is None


def test_the_median_and_the_deviation_from_it() -> None:
    assert plain_rounds(9.0, 10.0, 11.0).of(1) == PlainRound(10.0, 1.0, 3)


def test_a_machine_that_slept_in_a_round_says_nothing_of_the_others() -> None:
    slept = plain_rounds(*[10.0] * 63, 3_600_000.0).of(1)
    assert slept is not None
    assert slept.ms == 10.0
    assert slept.deviation < 3


def test_tokens_of_drafts_by_rounds_of_as_many_requests() -> None:
    plain, speedup = plain_rounds(40.0, 40.0, requests=8), Speedup()
    usual = plain.of(8)
    assert usual is not None
    speedup.drafted(1, 40.0, usual)
    speedup.drafted(4, 40.0, usual)
    assert speedup.value == 2.5


def test_nothing_compared_has_no_speedup() -> None:
    assert Speedup().value is None


@pytest.mark.parametrize("seed", range(8))
def test_rounds_without_a_draft_are_plain_decoding_however_long_they_take(seed: int) -> None:
    """Against their own median they came out slower: what disturbs a machine only ever adds time."""
    times = [10.0 + random.Random(seed + i).expovariate(0.5) for i in range(64)]
    usual = plain_rounds(*times).of(1)
    assert usual is not None
    assert sum(times) > 64 * usual.ms, "the mean is above the median"
    speedup = Speedup()
    for ms in times:
        speedup.plain(ms, 0.0, usual)
    assert speedup.value == 1.0


def test_looking_for_drafts_in_vain_is_slower() -> None:
    speedup = Speedup()
    for _ in range(10):
        speedup.plain(12.5, 2.5, STEADY)
    assert speedup.value == 0.8


@pytest.mark.parametrize(
    ("rounds", "ms", "value"),
    [
        (1, 20.5, 1.0),  # 2 tokens in 20.5 ms that vary by 1: nobody can tell
        (1, 19.5, 1.0),
        (400, 20.5, 0.976),  # but after so many rounds
        (1, 25.0, 0.8),
        (1, 10.0, 2.0),
    ],
)
def test_a_difference_within_two_standard_errors_is_noise(rounds: int, ms: float, value: float) -> None:
    speedup = Speedup()
    for _ in range(rounds):
        speedup.drafted(2, ms, PlainRound(10.0, 1.0, 10**6))
    assert speedup.value == value


def test_what_plain_rounds_take_is_itself_uncertain() -> None:
    """Drafts compared with few plain rounds are all off by the same: more of them do not make it better."""
    few, many = Speedup(), Speedup()
    for _ in range(400):
        few.drafted(2, 20.5, PlainRound(10.0, 1.0, 8))
        many.drafted(2, 20.5, PlainRound(10.0, 1.0, 8000))
    assert (few.value, many.value) == (1.0, 0.976)


def test_requests_that_share_a_round_share_its_noise() -> None:
    """Four rounds of one request average out what one round of four does not."""
    alone, together = Speedup(), Speedup()
    for _ in range(4):
        alone.drafted(2, 22.0, NOISY)
    together.drafted(8, 22.0, NOISY, 4)
    assert (alone.value, together.value) == (0.909, 1.0)
