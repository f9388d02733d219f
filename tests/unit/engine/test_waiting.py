"""The queue: who is next, and finding one of many."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foredraft.engine.request import Request, make_request
from foredraft.engine.scheduler import Scheduler, WaitingQueue
from foredraft.protocols import RequestView
from foredraft.testing import FakeModel
from foredraft.types import SamplingParams

MODEL = FakeModel(sequences=1)


def request(number: int, priority: int = 0) -> Request:
    view = RequestView(number, [1, 2], SamplingParams(), prompt_length=2)
    made = make_request(view, MODEL.tokenizer, context_length=100, vocab_size=MODEL.info.vocab_size)
    made.priority = priority
    return made


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(-1, 1)), max_size=40))
def test_who_waits_is_found_and_in_order_whatever_happened(changes: list[tuple[int, int]]) -> None:
    """A request that does not wait begins to, one that does stops; then it may come back."""
    waiting, expected = WaitingQueue(), dict[int, Request]()
    for number, priority in changes:
        if number in expected:
            waiting.remove(expected.pop(number))
        else:
            expected[number] = request(number, priority)
            waiting.add(expected[number])
        assert len(waiting) == len(expected)
        assert list(waiting) == sorted(expected.values(), key=Request.turn)
        assert [waiting.get(number) for number in range(7)] == [expected.get(number) for number in range(7)]


def test_what_is_removed_on_the_way_was_given_once() -> None:
    waiting = WaitingQueue()
    requests = [request(number) for number in range(5)]
    for one in requests:
        waiting.add(one)
    seen = []
    for one in waiting:
        waiting.remove(one)
        seen.append(one)
    assert seen == requests
    assert len(waiting) == 0


def test_one_that_does_not_wait_cannot_be_removed() -> None:
    waiting = WaitingQueue()
    waiting.add(request(1))
    with pytest.raises(KeyError):
        waiting.remove(request(2))
    assert [one.id for one in waiting] == [1]


def test_finding_and_aborting_one_look_at_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """With 4,000 requests in the queue a few are looked at, not all of them."""
    scheduler = Scheduler(MODEL)
    requests = [request(number) for number in range(4000)]
    for one in requests:
        scheduler.enqueue(one)
    looked: list[int] = []

    def id_of(one: Request) -> int:
        looked.append(one.view.id)
        return one.view.id

    monkeypatch.setattr(Request, "id", property(id_of))
    assert scheduler.find(3000) is requests[3000]
    assert scheduler.find(4000) is None
    scheduler.remove(requests[3000], keep=False)
    assert scheduler.find(3000) is None
    assert len(looked) < 40
    assert len(scheduler.waiting) == 3999
