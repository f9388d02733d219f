"""The engine's thread and the event loop: nobody waits for ever, and nothing runs for nobody."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import replace

import pytest

from foredraft import Engine, SamplingParams
from foredraft.errors import BackendError, CapacityError, HostLostError
from foredraft.server.worker import EngineWorker, Job
from foredraft.testing import FakeModel
from foredraft.types import Event, FinishEvent, FinishReason, Logits

JOB = Job(prompt=[1, 2, 3], params=SamplingParams(max_tokens=20))
ENDLESS = Job(prompt=[1, 2, 3], params=SamplingParams(ignore_eos=True))


class Breaking(Engine):
    """An engine whose parts fail on demand."""

    abort_fails = False
    step_fails = False
    close_fails = False
    pause_s = 0.0
    made = 0
    """Events so far."""

    def abort(self, request_id: int) -> list[Event]:
        if self.abort_fails:
            raise ValueError("abort")
        return super().abort(request_id)

    def step(self) -> list[Event]:
        if self.step_fails:
            raise ValueError("step")
        time.sleep(self.pause_s)
        events = super().step()
        self.made += len(events)
        return events

    def close(self) -> None:
        super().close()
        if self.close_fails:
            raise ValueError("close")


def run(scenario: Callable[[EngineWorker, Breaking], Awaitable[None]]) -> None:
    """The scenario with a worker around an engine, which is closed at the end."""
    engine = Breaking(FakeModel(64, context_length=1_000_000))

    async def main() -> None:
        worker = EngineWorker(lambda: engine)
        await worker.start()
        try:
            await asyncio.wait_for(scenario(worker, engine), 20)
        finally:
            await asyncio.wait_for(worker.close(), 20)

    asyncio.run(main())


async def collect(answer: AsyncGenerator[Sequence[Event], None]) -> list[Event]:
    return [event async for events in answer for event in events]


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.005)


def test_a_caller_that_leaves_while_its_request_is_being_added_leaves_nothing_behind() -> None:
    adding, go_on = threading.Event(), threading.Event()

    async def scenario(worker: EngineWorker, engine: Breaking) -> None:
        add = engine.add

        def slow(*args: object, **options: object) -> int:
            adding.set()
            go_on.wait(10)
            return add(*args, **options)  # type: ignore[arg-type]

        engine.add = slow  # type: ignore[method-assign]
        reading = asyncio.create_task(collect(worker.stream(ENDLESS)))
        await asyncio.to_thread(adding.wait, 10)
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
        go_on.set()
        assert await worker.call(lambda engine: engine.idle)

    run(scenario)


def test_a_reader_that_leaves_early_frees_its_place() -> None:
    async def scenario(worker: EngineWorker, engine: Breaking) -> None:
        events = worker.stream(ENDLESS)
        await anext(events)
        await events.aclose()
        assert await worker.call(lambda engine: engine.idle)

    run(scenario)


def test_what_a_question_raises_comes_back_and_the_engine_goes_on() -> None:
    async def scenario(worker: EngineWorker, engine: Breaking) -> None:
        with pytest.raises(ZeroDivisionError):
            await worker.call(lambda engine: 1 // 0)
        assert isinstance((await collect(worker.stream(JOB)))[-1], FinishEvent)

    run(scenario)


def test_closing_ends_streams_with_their_last_event() -> None:
    async def scenario(worker: EngineWorker, engine: Breaking) -> None:
        events = worker.stream(ENDLESS)
        await anext(events)
        await worker.close()
        last = (await collect(events))[-1]
        assert isinstance(last, FinishEvent)
        assert last.reason is FinishReason.ABORT
        with pytest.raises(CapacityError):
            await worker.call(lambda engine: None)

    run(scenario)


def test_what_was_asked_before_the_end_and_not_done_is_refused() -> None:
    """An engine that is closed must not be asked."""
    go_on = threading.Event()

    async def scenario(worker: EngineWorker, engine: Breaking) -> None:
        busy = asyncio.create_task(worker.call(lambda engine: go_on.wait(10)))
        await asyncio.sleep(0)
        closing = asyncio.create_task(worker.close())
        await asyncio.sleep(0.01)
        late = asyncio.create_task(worker.call(lambda engine: "done"))
        request = asyncio.create_task(collect(worker.stream(JOB)))
        await asyncio.sleep(0.01)
        go_on.set()
        await asyncio.gather(busy, closing)
        for refused in (late, request):
            with pytest.raises(CapacityError):
                await refused

    run(scenario)


def test_a_failed_round_ends_its_requests_and_the_next_ones_run() -> None:
    async def scenario(worker: EngineWorker, engine: Breaking) -> None:
        engine.step_fails = True
        with pytest.raises(BackendError):
            await collect(worker.stream(JOB))
        engine.step_fails = False
        assert isinstance((await collect(worker.stream(JOB)))[-1], FinishEvent)

    run(scenario)


def test_an_engine_that_lost_a_machine_ends_with_all_its_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    def lost(*_: object) -> Logits:
        raise HostLostError("The host was lost.")

    async def scenario(worker: EngineWorker, engine: Breaking) -> None:
        engine.max_waiting = 8
        running = [worker.stream(ENDLESS) for _ in range(engine.model.capabilities.sequences + 2)]
        assert await anext(running[0])
        others = [asyncio.create_task(collect(events)) for events in running[1:]]
        await until(lambda: engine.waiting_count == 2)
        monkeypatch.setattr(engine.model, "forward", lost)
        [*_, last] = await collect(running[0])
        assert isinstance(last, FinishEvent)
        assert last.error == "The host was lost."
        for ended in await asyncio.gather(*others, return_exceptions=True):
            if isinstance(ended, BaseException):
                assert isinstance(ended, HostLostError)
            else:
                assert isinstance(ended[-1], FinishEvent)
                assert "lost" in (ended[-1].error or "")
        await until(lambda: not worker.alive)

    run(scenario)


def test_who_is_told_of_a_lost_machine_does_not_find_its_engine_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The next request would end as the first one did, or be told that no model is loaded."""

    def lost(*_: object) -> Logits:
        raise HostLostError("The host was lost.")

    class Slow(Breaking):
        @property
        def lost(self) -> bool:
            time.sleep(0.05)
            return super().lost

    async def main() -> None:
        engine = Slow(FakeModel(64, context_length=1_000_000))
        worker = EngineWorker(lambda: engine)
        await worker.start()
        events = worker.stream(ENDLESS)
        assert await anext(events)
        monkeypatch.setattr(engine.model, "forward", lost)
        async for group in events:
            if isinstance(group[-1], FinishEvent):
                assert not worker.alive
        assert worker._thread is not None
        await asyncio.to_thread(worker._thread.join, 20)  # the model is freed, though nothing is asked
        assert not worker._thread.is_alive()
        await worker.close()

    asyncio.run(main())


def test_an_engine_that_cannot_even_abort_ends_and_says_so() -> None:
    async def scenario(worker: EngineWorker, engine: Breaking) -> None:
        events, left = worker.stream(ENDLESS), worker.stream(ENDLESS)
        await anext(events)
        await anext(left)
        engine.abort_fails = True
        await left.aclose()
        with pytest.raises(CapacityError):
            await collect(events)
        await until(lambda: not worker.alive)

    run(scenario)


def test_a_model_that_cannot_be_freed_leaves_nobody_waiting() -> None:
    go_on = threading.Event()

    async def scenario(worker: EngineWorker, engine: Breaking) -> None:
        engine.close_fails = True
        busy = asyncio.create_task(worker.call(lambda engine: go_on.wait(10)))
        await asyncio.sleep(0)
        closing = asyncio.create_task(worker.close())
        await asyncio.sleep(0.01)
        late = asyncio.create_task(worker.call(lambda engine: "done"))
        await asyncio.sleep(0.01)
        go_on.set()
        with pytest.raises(CapacityError):
            await late
        await asyncio.gather(busy, closing)

    run(scenario)


def test_loading_that_nobody_waits_for_any_more_frees_the_model() -> None:
    loading, go_on = threading.Event(), threading.Event()
    model = FakeModel(64)
    engine = Engine(model)

    def load() -> Engine:
        loading.set()
        go_on.wait(10)
        return engine

    async def main() -> None:
        worker = EngineWorker(load)
        starting = asyncio.create_task(worker.start())
        await asyncio.to_thread(loading.wait, 10)
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)
        go_on.set()
        await asyncio.wait_for(until(lambda: not worker.alive), 10)

    asyncio.run(main())


def test_who_reads_late_gets_all_that_came_at_once() -> None:
    async def scenario(worker: EngineWorker, engine: Breaking) -> None:
        engine.pause_s = 0.002
        answer = worker.stream(replace(JOB, params=replace(JOB.params, ignore_eos=True)))
        first = list(await anext(answer))
        while not await worker.call(lambda engine: engine.idle):
            await asyncio.sleep(0.01)
        [rest] = [list(events) async for events in answer]
        assert len(first + rest) == 21
        assert isinstance(rest[-1], FinishEvent)

    run(scenario)


def test_what_came_before_a_failure_is_read_before_it() -> None:
    async def scenario(worker: EngineWorker, engine: Breaking) -> None:
        engine.pause_s = 0.002
        answer = worker.stream(ENDLESS)
        await anext(answer)
        await asyncio.sleep(0.05)
        engine.step_fails = True
        came: list[Event] = []

        async def read() -> None:
            async for events in answer:
                came.extend(events)

        with pytest.raises(BackendError):
            await read()
        assert came

    run(scenario)


def test_what_comes_while_its_reader_is_busy_is_read_before_a_failure() -> None:
    async def scenario(worker: EngineWorker, engine: Breaking) -> None:
        engine.pause_s = 0.002
        answer = worker.stream(ENDLESS)
        came = len(await anext(answer))
        await until(lambda: engine.made > 100)  # its reader has not asked for more
        engine.step_fails = True
        await until(lambda: not worker._sinks)
        await worker.call(lambda engine: None)

        async def read() -> None:
            nonlocal came
            async for events in answer:
                came += len(events)

        with pytest.raises(BackendError):
            await read()
        assert came == engine.made

    run(scenario)
