"""Several answers to one prompt as one stream of events, for every API alike."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import replace

from foretoken.errors import BackendError, CapacityError, DeadlineExceededError
from foretoken.server.pool import Served
from foretoken.server.worker import Job
from foretoken.types import Event, FinishEvent, FinishReason

Choice = tuple[int, Event]
"""(which answer, its event)."""


def several(job: Job, n: int) -> list[Job]:
    """`n` jobs for `n` answers. With a seed each answer has its own, counted up from it."""
    seed = job.params.seed
    if seed is None:
        return [job] * n
    return [replace(job, params=replace(job.params, seed=seed + i)) for i in range(n)]


async def choices(served: Served, jobs: Sequence[Job], caller: str = "local") -> AsyncGenerator[Choice, None]:
    """The events of all answers as they come, each with the answer's number; `caller` is for the log.
    Leaving it aborts them all.

    Raises what `EngineWorker.stream` and `checked` raise.
    """
    if len(jobs) == 1:
        async with aclosing(served.stream(jobs[0], caller)) as events:
            async for event in events:
                yield 0, checked(event)
        return
    queue: asyncio.Queue[Choice | BaseException | None] = asyncio.Queue()

    async def read(number: int, job: Job) -> None:
        try:
            async with aclosing(served.stream(job, caller)) as events:
                async for event in events:
                    queue.put_nowait((number, checked(event)))
            queue.put_nowait(None)
        except Exception as error:  # noqa: BLE001 - raised again where the stream is read
            queue.put_nowait(error)

    tasks = [asyncio.create_task(read(number, job)) for number, job in enumerate(jobs)]
    try:
        running = len(tasks)
        while running:
            item = await queue.get()
            if isinstance(item, BaseException):
                raise item
            if item is None:
                running -= 1
            else:
                yield item
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def checked(event: Event) -> Event:
    """The event, unless it says that its request failed.

    Raises DeadlineExceededError, CapacityError when the model was unloaded, BackendError.
    """
    if isinstance(event, FinishEvent):
        if event.reason is FinishReason.ERROR:
            raise BackendError(event.error or "The request failed.")
        if event.reason is FinishReason.ABORT:
            if event.error:
                raise DeadlineExceededError(event.error)
            raise CapacityError("The model is being unloaded.", hint="Try again.")
    return event
