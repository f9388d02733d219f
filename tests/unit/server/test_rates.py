"""Rate and concurrency limits, on a clock that stands still until told."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foredraft.errors import RateLimitError, RequestError
from foredraft.server.auth import Caller
from foredraft.server.rates import RateLimiter


class Clock:
    """Seconds, set by the test."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def limiter(clock: Clock) -> RateLimiter:
    return RateLimiter(clock)


def caller(name: str = "alice", rate: int | None = None, concurrent: int | None = None) -> Caller:
    return Caller(name, name, requests_per_minute=rate, max_concurrent=concurrent)


def refused(limiter: RateLimiter, who: Caller) -> float:
    with pytest.raises(RateLimitError) as error:
        limiter.admit(who)
    assert (error.value.status, error.value.code) == (429, "rate_limit_exceeded")
    assert error.value.hint
    return error.value.retry_after


def test_no_limits(limiter: RateLimiter) -> None:
    for _ in range(1000):
        limiter.admit(caller())


def test_as_many_at_once_as_a_minute_has(limiter: RateLimiter, clock: Clock) -> None:
    alice = caller(rate=6)
    for _ in range(6):
        limiter.admit(alice).release()
    assert refused(limiter, alice) == pytest.approx(10)
    clock.now += 4
    assert refused(limiter, alice) == pytest.approx(6)
    clock.now += 6
    limiter.admit(alice)
    assert refused(limiter, alice) == pytest.approx(10)


def test_a_pause_fills_the_bucket_and_no_more(limiter: RateLimiter, clock: Clock) -> None:
    alice = caller(rate=3)
    for _ in range(3):
        limiter.admit(alice)
    clock.now += 3600
    for _ in range(3):
        limiter.admit(alice)
    refused(limiter, alice)


def test_keys_do_not_share_limits(limiter: RateLimiter) -> None:
    limiter.admit(caller("alice", rate=1, concurrent=1))
    limiter.admit(caller("bob", rate=1, concurrent=1))
    refused(limiter, caller("alice", rate=1))


@given(rate=st.integers(1, 600), pauses=st.lists(st.floats(0, 30), max_size=40))
def test_waiting_as_told_is_enough(rate: int, pauses: list[float]) -> None:
    clock = Clock()
    limiter = RateLimiter(clock)
    alice = caller(rate=rate)
    for _ in range(rate):
        limiter.admit(alice)
    for pause in pauses:
        clock.now += pause
        try:
            limiter.admit(alice)
        except RateLimitError as error:
            clock.now += error.retry_after
            limiter.admit(alice)


@given(rate=st.integers(1, 60), gaps=st.lists(st.floats(0, 20), min_size=1, max_size=200))
def test_never_more_than_the_bucket_and_what_flowed_in(rate: int, gaps: list[float]) -> None:
    clock = Clock()
    limiter = RateLimiter(clock)
    began, admitted = clock.now, 0
    for gap in gaps:
        clock.now += gap
        try:
            limiter.admit(caller(rate=rate))
        except RateLimitError:
            continue
        admitted += 1
        assert admitted <= rate + (clock.now - began) * rate / 60 + 1e-3


def test_requests_at_once(limiter: RateLimiter) -> None:
    alice = caller(concurrent=2)
    first, second = limiter.admit(alice), limiter.admit(alice)
    assert refused(limiter, alice) > 0
    first.release()
    third = limiter.admit(alice)
    refused(limiter, alice)
    second.release()
    third.release()
    limiter.admit(alice)


def test_a_permit_counts_once_however_often_it_is_released(limiter: RateLimiter) -> None:
    alice = caller(concurrent=1)
    permit = limiter.admit(alice)
    permit.release()
    held = limiter.admit(alice)
    permit.release()
    refused(limiter, alice)
    held.release()


def test_an_error_inside_gives_the_permit_back(limiter: RateLimiter) -> None:
    alice = caller(concurrent=1)
    with pytest.raises(ValueError, match="failed"), limiter.admit(alice):
        raise ValueError("failed")
    limiter.admit(alice)


def test_a_refusal_costs_nothing(limiter: RateLimiter, clock: Clock) -> None:
    alice = caller(rate=2, concurrent=1)
    running = limiter.admit(alice)
    for _ in range(10):
        refused(limiter, alice)
    running.release()
    limiter.admit(alice).release()
    wait = refused(limiter, alice)
    for _ in range(10):
        refused(limiter, alice)
    clock.now += wait
    limiter.admit(alice)


def test_a_limit_that_is_edited(limiter: RateLimiter, clock: Clock) -> None:
    for _ in range(60):
        limiter.admit(caller(rate=60))
    # Lowered: the wait is one request's, not that of the sixty that were allowed before.
    assert refused(limiter, caller(rate=2)) == pytest.approx(30)
    limiter.admit(caller(rate=None))
    limiter.admit(caller(rate=2))


def test_memory_is_bounded(limiter: RateLimiter, clock: Clock) -> None:
    running = limiter.admit(caller("running", concurrent=1))
    for number in range(500):
        limiter.admit(caller(f"key{number}", rate=5)).release()
    assert len(limiter) == 501
    clock.now += 61
    limiter.admit(caller("late", rate=5)).release()
    assert len(limiter) == 2
    refused(limiter, caller("running", concurrent=1))
    running.release()
    clock.now += 61
    limiter.admit(caller("late", rate=5))
    assert len(limiter) == 1


def test_nothing_is_forgotten_that_still_counts(limiter: RateLimiter, clock: Clock) -> None:
    alice = caller(rate=1)
    clock.now += 59
    limiter.admit(alice)
    clock.now += 30
    limiter.admit(caller("bob"))
    assert refused(limiter, alice) == pytest.approx(30)


def test_each_answer_of_a_request_counts(limiter: RateLimiter) -> None:
    who = caller(concurrent=4)
    with limiter.admit(who) as first:
        asyncio.run(first.grow(2))
        with limiter.admit(who) as second, pytest.raises(RateLimitError, match="limit is 4"):
            asyncio.run(second.grow(1))
        with pytest.raises(RequestError, match="exceed this key's limit of 4"):
            asyncio.run(first.grow(2))
    with limiter.admit(who) as again:
        asyncio.run(again.grow(3))
