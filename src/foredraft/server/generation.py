"""Several answers to one prompt as one stream of events, shared by all APIs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import replace

from foredraft.errors import BackendError, CapacityError, DeadlineExceededError, ForedraftError
from foredraft.server.pool import Served
from foredraft.server.worker import Job
from foredraft.types import Event, FinishEvent, FinishReason

Choice = tuple[int, Sequence[Event]]
"""(index of the answer, its events that came together, at least one)"""


def several(job: Job, n: int) -> list[Job]:
    """`n` jobs for `n` answers. With a seed, the answers use consecutive seeds."""
    seed = job.params.seed
    if seed is None:
        return [job] * n
    return [replace(job, params=replace(job.params, seed=seed + i)) for i in range(n)]


async def choices(served: Served, jobs: Sequence[Job]) -> AsyncGenerator[Sequence[Choice], None]:
    """The events of all answers as they come, in groups that are available at the same time. Leaving the
    generator aborts all of them.

    Raises what `EngineWorker.stream` and `sound` raise.
    """
    if len(jobs) == 1:
        async with aclosing(sound(served.stream(jobs[0]))) as answer:
            async for events in answer:
                yield [(0, events)]
        return
    async with aclosing(_merged(served, jobs)) as answers:
        async for came in answers:
            yield came


async def _merged(served: Served, jobs: Sequence[Job]) -> AsyncGenerator[Sequence[Choice], None]:
    queue: asyncio.Queue[Choice | BaseException | None] = asyncio.Queue()

    async def read(number: int, job: Job) -> None:
        try:
            async with aclosing(sound(served.stream(job))) as answer:
                async for events in answer:
                    queue.put_nowait((number, events))
            queue.put_nowait(None)
        except Exception as error:  # noqa: BLE001 - raised again where the stream is read
            queue.put_nowait(error)

    tasks = [asyncio.create_task(read(number, job)) for number, job in enumerate(jobs)]
    try:
        running = len(tasks)
        while running:
            items = [await queue.get()]
            while not queue.empty():
                items.append(queue.get_nowait())
            if came := [item for item in items if isinstance(item, tuple)]:
                yield came
            for item in items:
                if isinstance(item, BaseException):
                    raise item
            running -= items.count(None)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def openai_finish(reason: FinishReason) -> str:
    """OpenAI's `finish_reason`, for strict clients: a repeating answer counts as cut off (length),
    and so does one that was stopped from outside.
    """
    return str(FinishReason.LENGTH if reason.cut else reason)


def stop_reason(reason: FinishReason) -> dict[str, str]:
    """A choice's `stop_reason` as in vLLM, where `openai_finish` is not specific."""
    return {"stop_reason": str(reason)} if reason in (FinishReason.REPETITION, FinishReason.STOPPED) else {}


async def sound(answer: AsyncGenerator[Sequence[Event], None]) -> AsyncGenerator[Sequence[Event], None]:
    """The same events, but a failed request raises an exception instead of ending with a failure event.

    Raises DeadlineExceededError, CapacityError if the model was unloaded, or BackendError.
    """
    async with aclosing(answer):
        async for events in answer:
            error = _failure(events[-1])
            if error is None:
                yield events
                continue
            if events[:-1]:
                yield events[:-1]
            raise error


def _failure(event: Event) -> ForedraftError | None:
    if not isinstance(event, FinishEvent):
        return None
    if event.reason is FinishReason.ERROR:
        return BackendError(event.error or "The request failed.")
    if event.reason is not FinishReason.ABORT:
        return None
    if event.error:
        return DeadlineExceededError(event.error)
    return CapacityError("The model is being unloaded.", hint="Try again.")
