"""How requests end: the last token is out before what is done at the end, and nothing is lost by that."""

from __future__ import annotations

from time import sleep

from foredraft import Engine, FinishEvent, FinishReason, SamplingParams, TokenEvent
from foredraft.protocols import RequestView
from foredraft.testing import FakeModel, ScriptedDrafter

PROMPT = [1, 2, 3]
COUNT = 4


class SlowToStop(ScriptedDrafter):
    """Takes 50 ms at the end of a request."""

    stopped = 0

    def stop(self, request: RequestView) -> None:
        sleep(0.05)
        self.stopped += 1
        super().stop(request)


def make() -> tuple[Engine, SlowToStop]:
    drafter = SlowToStop(lambda history: ())
    return Engine(FakeModel(), drafters=[drafter]), drafter


def test_the_last_token_does_not_wait_for_the_end() -> None:
    engine, drafter = make()
    with engine.stream(PROMPT, max_tokens=COUNT, ignore_eos=True) as events:
        tokens = [next(events) for _ in range(COUNT)]
        assert all(isinstance(event, TokenEvent) for event in tokens)
        assert drafter.stopped < 1
        last = next(events)
    assert isinstance(last, FinishEvent)
    assert last.reason is FinishReason.LENGTH
    assert drafter.stopped == 1


def test_a_reader_who_takes_a_break_before_the_last_event_is_not_in_the_timings() -> None:
    engine, _ = make()
    events = engine.stream(PROMPT, max_tokens=COUNT, ignore_eos=True)
    for _ in range(COUNT):
        next(events)
    sleep(0.3)
    last = next(events)
    assert isinstance(last, FinishEvent)
    assert last.timings.predicted_ms < 250


def test_an_answer_whose_last_event_nobody_took_is_over() -> None:
    engine, drafter = make()
    events = engine.stream(PROMPT, max_tokens=COUNT, ignore_eos=True)
    for _ in range(COUNT):
        next(events)
    assert engine.idle
    assert drafter.stopped == 1
    engine.set_speculation("off")
    assert isinstance(next(events), FinishEvent)


def test_who_reads_another_stream_ends_it_too() -> None:
    engine, drafter = make()
    first, second = (engine.stream(PROMPT, max_tokens=count, ignore_eos=True) for count in (COUNT, 2 * COUNT))
    for _ in range(COUNT):
        next(first)
    for _ in range(COUNT + 1):
        next(second)
    assert drafter.stopped == 1
    assert engine.running_count == 1
    last = next(first)
    assert isinstance(last, FinishEvent)
    assert last.reason is FinishReason.LENGTH


def test_an_answer_that_is_complete_is_not_aborted_any_more() -> None:
    engine, _ = make()
    events = engine.stream(PROMPT, max_tokens=COUNT, ignore_eos=True)
    for _ in range(COUNT):
        next(events)
    assert not engine.abort(events.request)
    last = next(events)
    assert isinstance(last, FinishEvent)
    assert last.reason is FinishReason.LENGTH


def test_a_step_returns_the_last_token_and_the_end() -> None:
    engine, drafter = make()
    engine.add(PROMPT, SamplingParams(max_tokens=1))
    token, last = engine.step()
    assert isinstance(token, TokenEvent)
    assert isinstance(last, FinishEvent)
    assert drafter.stopped == 1
