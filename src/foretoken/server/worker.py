"""One engine on a thread of its own: async callers on one side, rounds on the other.

The engine is synchronous and belongs to its thread. Callers hand in work and get events back through their
event loop; all events of a round cross over in one go.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncGenerator, Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import TypeVar

from foretoken.engine.engine import Engine
from foretoken.errors import BackendError, CapacityError, ForetokenError
from foretoken.types import Event, FinishEvent, SamplingParams

Result = TypeVar("Result")
logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A request for the engine: token ids and everything `Engine.add` takes beside them."""

    prompt: Sequence[int]
    params: SamplingParams
    prediction: str = ""
    scope: str = ""
    priority: int = 0
    deadline_s: float | None = None
    max_draft: int | None = None


@dataclass(slots=True)
class _Sink:
    """Where a request's events go: a queue in its caller's event loop."""

    loop: asyncio.AbstractEventLoop
    queue: asyncio.Queue[Event | ForetokenError] = field(default_factory=asyncio.Queue)


class EngineWorker:
    """Runs an engine that `load` makes. Nothing here blocks the event loop.

    `start` before use, `close` at the end. Any number of `stream` and `call` at once.
    """

    def __init__(self, load: Callable[[], Engine]) -> None:
        self._load = load
        self._inbox: SimpleQueue[Callable[[Engine], None] | None] = SimpleQueue()
        self._sinks: dict[int, _Sink] = {}
        self._thread: threading.Thread | None = None
        self._ended = False

    async def start(self) -> None:
        """Load the model. Raises what loading raises."""
        ready: Future[None] = Future()
        self._thread = threading.Thread(target=self._run, args=(ready,), name="foretoken-engine", daemon=True)
        self._thread.start()
        await asyncio.wrap_future(ready)

    async def close(self) -> None:
        """Abort what is running, each request with its finish event, and free the model. Safe to repeat."""
        if self._thread is not None:
            self._inbox.put(None)
            await asyncio.to_thread(self._thread.join)

    async def call(self, ask: Callable[[Engine], Result]) -> Result:
        """Have the engine's thread do something between two rounds. Raises what that raises."""
        answer: Future[Result] = Future()

        def work(engine: Engine) -> None:
            if not answer.set_running_or_notify_cancel():
                return
            try:
                answer.set_result(ask(engine))
            except BaseException as error:  # noqa: BLE001 - it belongs to whoever asked
                answer.set_exception(error)

        self._post(work)
        return await asyncio.wrap_future(answer)

    async def stream(self, job: Job) -> AsyncGenerator[Event, None]:
        """The events of a new request, the last a FinishEvent. Left early, the request is aborted and its
        KV cells are free before the next round.

        Raises RequestError and CapacityError before the first event, BackendError if the engine is gone.
        """
        sink = _Sink(asyncio.get_running_loop())
        request: int | None = None

        def add(engine: Engine) -> int:
            added = engine.add(
                list(job.prompt),
                job.params,
                prediction=job.prediction,
                scope=job.scope,
                priority=job.priority,
                deadline_s=job.deadline_s,
                max_draft=job.max_draft,
            )
            self._sinks[added] = sink
            return added

        try:
            request = await self.call(add)
            while True:
                event = await sink.queue.get()
                if isinstance(event, ForetokenError):
                    raise event
                if isinstance(event, FinishEvent):
                    request = None
                yield event
                if request is None:
                    return
        finally:
            if request is not None:
                self._abort(request)

    def _abort(self, request: int) -> None:
        def work(engine: Engine) -> None:
            self._sinks.pop(request, None)
            engine.abort(request)

        with suppress(CapacityError):
            self._post(work)

    def _post(self, work: Callable[[Engine], None]) -> None:
        if self._ended or self._thread is None:
            raise CapacityError("The model is not loaded.", hint="Try again when it is.")
        self._inbox.put(work)

    # --- on the engine's thread ------------------------------------------------------------------------

    def _run(self, ready: Future[None]) -> None:
        try:
            engine = self._load()
        except BaseException as error:  # noqa: BLE001 - it belongs to whoever started us
            self._ended = True
            ready.set_exception(error)
            return
        ready.set_result(None)
        try:
            while self._work(engine):
                if not engine.idle:
                    self._deliver(self._step(engine))
        finally:
            self._ended = True
            self._end(engine)

    def _work(self, engine: Engine) -> bool:
        """Do what was handed in; waits for something when the engine is idle. False at the end."""
        while True:
            try:
                work = self._inbox.get(block=engine.idle)
            except Empty:
                return True
            if work is None:
                return False
            work(engine)

    def _step(self, engine: Engine) -> list[Event]:
        try:
            return engine.step()
        except Exception as error:
            logger.exception("A round failed; its requests end with an error.")
            reason = error if isinstance(error, ForetokenError) else BackendError("The engine failed.")
            for request, sink in list(self._sinks.items()):
                _put(sink, [reason])
                self._sinks.pop(request)
                engine.abort(request)
            return []

    def _deliver(self, events: Sequence[Event]) -> None:
        by_request: dict[int, list[Event | ForetokenError]] = {}
        for event in events:
            by_request.setdefault(event.request, []).append(event)
        for request, its_events in by_request.items():
            sink = self._sinks.get(request)
            if sink is None:
                continue
            _put(sink, its_events)
            if isinstance(its_events[-1], FinishEvent):
                del self._sinks[request]

    def _end(self, engine: Engine) -> None:
        for request in list(self._sinks):
            self._deliver(engine.abort(request))
        engine.close()
        while True:  # whoever is still waiting for an answer
            try:
                work = self._inbox.get_nowait()
            except Empty:
                return
            if work is not None:
                work(engine)


def _put(sink: _Sink, events: Sequence[Event | ForetokenError]) -> None:
    def put() -> None:
        for event in events:
            sink.queue.put_nowait(event)

    with suppress(RuntimeError):  # its event loop is closed: nobody reads any more
        sink.loop.call_soon_threadsafe(put)
