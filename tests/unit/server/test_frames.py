"""Tokens of short rounds cross over together, and nothing waits that somebody waits for."""

from __future__ import annotations

import asyncio

import pytest

from foredraft import Engine, SamplingParams
from foredraft.server.frames import FRAME_S, Frames
from foredraft.server.worker import EngineWorker, Job
from foredraft.testing import FakeModel
from foredraft.types import Event, FinishEvent, TokenEvent


class Rounds:
    """Rounds of one request that take as long as is said, and what crosses over after each."""

    def __init__(self) -> None:
        self.now = 100.0
        self.frames = Frames(lambda: self.now)
        self.tokens = 0

    def after(self, ms: float, *events: Event, fresh: bool = False, hurry: bool = False) -> int:
        """How many events cross over after a round of so many milliseconds; of one token if of nothing."""
        self.now += ms / 1e3
        self.tokens += 1
        its = events or (token(self.tokens),)
        return len(self.frames.due(its, {1} if fresh else (), hurry=hurry))


def token(number: int) -> TokenEvent:
    return TokenEvent(1, number, "a", "target", None)


def test_short_rounds_cross_over_once_a_frame() -> None:
    rounds = Rounds()
    assert rounds.after(5, fresh=True) == 1, "the first token waits for nothing"
    assert [rounds.after(300 * FRAME_S) for _ in range(9)] == [0, 0, 3] * 3


@pytest.mark.parametrize("ms", [1e3 * FRAME_S, 40.0, 1000.0])
def test_rounds_as_long_as_a_frame_cross_over_at_once(ms: float) -> None:
    rounds = Rounds()
    rounds.after(5, fresh=True)
    assert [rounds.after(ms) for _ in range(4)] == [1] * 4


def test_a_long_round_to_come_is_not_waited_for() -> None:
    rounds = Rounds()
    rounds.after(5, fresh=True)
    assert rounds.after(2) == 0
    assert rounds.after(2, hurry=True) == 2


def test_an_end_takes_along_what_waits() -> None:
    rounds = Rounds()
    rounds.after(5, fresh=True)
    with Engine(FakeModel(64)) as engine:
        engine.add([1, 2, 3], SamplingParams(max_tokens=1))
        (*_, end) = engine.step()
    assert isinstance(end, FinishEvent)
    assert rounds.after(2) == 0
    assert rounds.after(2, token(3), end) == 3
    assert rounds.frames.rest() == []


def test_order_is_kept_and_nothing_is_lost() -> None:
    rounds, crossed = Rounds(), list[Event]()
    for number in range(200):
        rounds.now += 0.004
        crossed += rounds.frames.due([token(number)], ())
    crossed += rounds.frames.rest()
    assert crossed == [token(number) for number in range(200)]


def test_a_streams_tokens_reach_it_in_a_third_of_the_crossings() -> None:
    now = [0.0]

    class Timed(Engine):
        def step(self) -> list[Event]:
            now[0] += 0.3 * FRAME_S
            return super().step()

    crossings: list[int] = []

    async def main() -> list[Event]:
        engine = Timed(FakeModel(64, context_length=1000))
        worker = EngineWorker(lambda: engine, clock=lambda: now[0])
        deliver = worker._deliver

        def counted(events: list[Event]) -> None:
            crossings.append(len(events))
            deliver(events)

        worker._deliver = counted  # type: ignore[method-assign,assignment]
        await worker.start()
        job = Job(prompt=[1, 2, 3], params=SamplingParams(max_tokens=40, ignore_eos=True))
        try:
            return [event async for events in worker.stream(job) for event in events]
        finally:
            await worker.close()

    events = asyncio.run(main())
    assert len([event for event in events if isinstance(event, TokenEvent)]) == 40
    assert isinstance(events[-1], FinishEvent)
    filled = [count for count in crossings if count]
    assert filled[0] == 1
    assert len(filled) <= 16
