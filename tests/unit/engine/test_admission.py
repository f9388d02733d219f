"""Who comes in first, who is turned away, and whose time is up."""

from __future__ import annotations

import pytest

from foredraft import Engine, FinishEvent, FinishReason, SamplingParams, TokenEvent
from foredraft.errors import CapacityError, QueueFullError, RequestError
from foredraft.testing import FakeModel, ScriptedDrafter
from foredraft.types import Event

TEN = SamplingParams(max_tokens=10, ignore_eos=True)
ENDLESS = SamplingParams(max_tokens=2000, ignore_eos=True)


class Clock:
    """Seconds that pass when they are told to."""

    def __init__(self) -> None:
        self.seconds = 100.0

    def __call__(self) -> float:
        return self.seconds


def first_tokens(engine: Engine) -> list[int]:
    """Requests in the order in which they got their first token, once all are finished."""
    order: list[int] = []
    while not engine.idle:
        for event in engine.step():
            if isinstance(event, TokenEvent) and event.request not in order:
                order.append(event.request)
    return order


# --- priorities ------------------------------------------------------------------------------------------


def test_a_higher_priority_is_admitted_first_and_equal_ones_in_order() -> None:
    engine = Engine(FakeModel(sequences=1))
    ids = [engine.add([n + 1], TEN, priority=priority) for n, priority in enumerate((0, 5, -1, 5, 0))]
    assert first_tokens(engine) == [ids[n] for n in (1, 3, 0, 4, 2)]


def test_a_running_request_is_not_displaced_by_a_higher_priority() -> None:
    engine = Engine(FakeModel(sequences=1))
    running = engine.add([1], TEN)
    engine.step()
    urgent = engine.add([2], TEN, priority=9)
    finished = [event.request for event in all_events(engine) if isinstance(event, FinishEvent)]
    assert finished == [running, urgent]


@pytest.mark.parametrize("priority", [1.5, "high", None, True])
def test_a_priority_is_a_whole_number(priority: object) -> None:
    engine = Engine(FakeModel())
    with pytest.raises(RequestError, match="priority"):
        engine.add([1], TEN, priority=priority)  # type: ignore[arg-type]
    assert engine.idle


# --- deadlines -------------------------------------------------------------------------------------------


def all_events(engine: Engine) -> list[Event]:
    events: list[Event] = []
    while not engine.idle:
        events += engine.step()
    return events


def end_of(events: list[Event], request: int) -> FinishEvent:
    [end] = [event for event in events if isinstance(event, FinishEvent) and event.request == request]
    return end


def test_a_running_request_ends_with_the_first_round_after_its_deadline() -> None:
    clock = Clock()
    model = FakeModel(sequences=1)
    drafter = ScriptedDrafter(lambda _: None)
    engine = Engine(model, drafters=[drafter], clock=clock)
    late = engine.add([1, 2, 3], ENDLESS, deadline_s=2.0)
    for _ in range(3):
        engine.step()
    clock.seconds += 1.9
    assert [type(event) for event in engine.step()] == [TokenEvent]
    clock.seconds += 0.1
    forwards = len(model.forwards)
    [end] = engine.step()
    assert isinstance(end, FinishEvent)
    assert (end.request, end.reason, end.usage.completion_tokens) == (late, FinishReason.ABORT, 4)
    assert end.error is not None
    assert "deadline" in end.error
    assert len(model.forwards) == forwards, "nothing is computed for it any more"
    assert engine.idle
    assert engine.kv_tokens == 0
    assert not drafter.open


def test_its_place_is_free_in_the_same_round() -> None:
    clock = Clock()
    engine = Engine(FakeModel(sequences=1), clock=clock)
    late = engine.add([1], ENDLESS, deadline_s=1.0)
    next_one = engine.add([2], TEN)
    engine.step()
    clock.seconds += 5.0
    events = engine.step()
    assert [(type(event), event.request) for event in events] == [
        (FinishEvent, late),
        (TokenEvent, next_one),
    ]


def test_a_waiting_request_ends_at_its_deadline_too() -> None:
    clock = Clock()
    engine = Engine(FakeModel(sequences=1), clock=clock)
    running = engine.add([1], TEN)
    waiting = engine.add([2], TEN, deadline_s=1.0)
    engine.step()
    clock.seconds += 1.0
    events = engine.step()
    end = end_of(events, waiting)
    assert (end.reason, end.usage.completion_tokens) == (FinishReason.ABORT, 0)
    assert "waiting" in (end.error or "")
    assert end_of(all_events(engine), running).reason is FinishReason.LENGTH


def test_a_deadline_that_is_kept_changes_nothing() -> None:
    alone = Engine(FakeModel()).generate([1, 2], TEN)
    engine = Engine(FakeModel(), clock=Clock())
    [result] = engine.run([engine.add([1, 2], TEN, deadline_s=0.001)])
    assert (result.tokens, result.finish_reason, result.error) == (alone.tokens, alone.finish_reason, None)


def test_a_stream_gets_the_end_of_a_request_that_was_late() -> None:
    clock = Clock()
    engine = Engine(FakeModel(), clock=clock)
    request = engine.add([1], ENDLESS, deadline_s=1.0)
    stream = engine._follow(request)
    next(stream)
    clock.seconds += 2.0
    end = list(stream)[-1]
    assert isinstance(end, FinishEvent)
    assert end.reason is FinishReason.ABORT


@pytest.mark.parametrize("deadline", [0.0, -1.0, float("nan"), "soon", True])
def test_a_deadline_is_a_positive_number_of_seconds(deadline: object) -> None:
    engine = Engine(FakeModel())
    with pytest.raises(RequestError, match="deadline_s"):
        engine.add([1], TEN, deadline_s=deadline)  # type: ignore[arg-type]
    assert engine.idle


# --- the queue's limit -----------------------------------------------------------------------------------


def test_a_full_queue_turns_requests_away_until_there_is_room() -> None:
    engine = Engine(FakeModel(sequences=1), max_waiting=2)
    ids = [engine.add([1], TEN)]
    engine.step()
    ids += [engine.add([2], TEN), engine.add([3], TEN)]
    with pytest.raises(QueueFullError) as caught:
        engine.add([4], TEN)
    assert isinstance(caught.value, CapacityError)
    assert (caught.value.status, caught.value.code) == (429, "queue_full")
    assert caught.value.hint
    engine.abort(ids[1])
    ids[1] = engine.add([4], TEN)
    assert first_tokens(engine) == [ids[0], ids[2], ids[1]]


def test_requests_that_need_not_wait_do_not_count() -> None:
    engine = Engine(FakeModel(sequences=3), max_waiting=0)
    for n in range(3):
        engine.add([n], TEN)
    with pytest.raises(QueueFullError):
        engine.add([4], TEN)
    engine.step()
    with pytest.raises(QueueFullError):
        engine.add([4], TEN)


def test_the_limit_can_be_changed_and_there_is_none_by_default() -> None:
    engine = Engine(FakeModel(sequences=1))
    for _ in range(50):
        engine.add([1], TEN)
    engine.max_waiting = 3
    with pytest.raises(QueueFullError):
        engine.add([1], TEN)
    engine.max_waiting = None
    engine.add([1], TEN)
    assert engine.waiting_count == 51


# --- what a server may ask -------------------------------------------------------------------------------


def test_counts_of_waiting_and_running_requests_and_their_tokens() -> None:
    engine = Engine(FakeModel(sequences=2))
    assert (engine.waiting_count, engine.running_count, engine.kv_tokens) == (0, 0, 0)
    ids = [engine.add([1, 2, 3, 4], TEN), engine.add([7, 8], TEN), engine.add([9], TEN)]
    assert (engine.waiting_count, engine.running_count, engine.kv_tokens) == (3, 0, 0)
    engine.step()
    assert (engine.waiting_count, engine.running_count, engine.kv_tokens) == (1, 2, 6)
    engine.step()
    assert engine.kv_tokens == 8
    engine.abort(ids[0])
    assert (engine.running_count, engine.kv_tokens) == (1, 3)
    first_tokens(engine)
    assert (engine.waiting_count, engine.running_count, engine.kv_tokens) == (0, 0, 0)
