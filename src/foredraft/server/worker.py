"""Runs one engine on its own thread for async callers.

The engine is synchronous and belongs to its thread. Callers submit work and receive events through their
event loop; all events of a round are handed over at once, and those of short rounds together (`frames.py`).
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field, replace
from queue import Empty, SimpleQueue
from time import perf_counter
from typing import TypeVar

from foredraft.engine.engine import Engine
from foredraft.engine.images import with_rows
from foredraft.errors import BackendError, CapacityError, ForedraftError, HostLostError
from foredraft.images import EncodedPrompt, ImageSpan, PreparedImage
from foredraft.protocols import RequestView
from foredraft.server.frames import Frames
from foredraft.types import Event, FinishEvent, SamplingParams

Result = TypeVar("Result")
logger = logging.getLogger(__name__)

Work = Callable[[Engine | None], None]
"""Work for the engine's thread; it is called with None if the engine has stopped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A request for the engine: token ids, the images among them, and the other arguments of `Engine.add`."""

    prompt: Sequence[int]
    params: SamplingParams
    images: tuple[ImageSpan, ...] = ()
    prediction: Sequence[int] = ()
    scope: str = ""
    priority: int = 0
    deadline_s: float | None = None
    max_draft: int | None = None
    adapter: str = ""

    def seeing(self, prepared: Mapping[str, PreparedImage]) -> Job:
        """The same with the rows of images that were prepared, by their keys."""
        return replace(self, images=with_rows(self.images, prepared))


@dataclass(slots=True)
class Ticket:
    """A request on its way through the worker. `placed`: it has a place in the engine, and does not wait any
    more, and began with `cached` tokens. `notice`: why it is to be stopped.
    """

    placed: bool = False
    cached: int = 0
    notice: str | None = None
    _end: Callable[[], None] | None = None

    def stop(self, notice: str) -> None:
        """End the request with the text it has, as soon as it is in the engine; its last event has the
        notice.
        """
        self.notice = notice
        if self._end is not None:
            self._end()

    def handed_in(self, end: Callable[[], None]) -> None:
        """From now on `end` ends it."""
        self._end = end


@dataclass(slots=True)
class _Sink:
    """A request's events on their way to its caller's event loop."""

    loop: asyncio.AbstractEventLoop
    ticket: Ticket
    events: list[Event] = field(default_factory=list)
    failed: ForedraftError | None = None
    """The error that ended the request instead of its last event."""
    filled: asyncio.Event = field(default_factory=asyncio.Event)
    request: int | None = None
    """Set by the engine's thread when the request was added."""
    begun: bool = False
    """Whether any event was delivered; only used by the engine's thread."""


class EngineWorker:
    """Runs an engine created by `load`, without blocking the event loop. `clock` returns seconds.

    Call `start` first and `close` last. Any number of `stream` and `call` can run at once.
    """

    def __init__(self, load: Callable[[], Engine], clock: Callable[[], float] = perf_counter) -> None:
        self._load = load
        self._frames = Frames(clock)
        self._inbox: SimpleQueue[Work | None] = SimpleQueue()
        self._sinks: dict[int, _Sink] = {}
        self._thread: threading.Thread | None = None
        self._ended = False
        self._posting = threading.Lock()

    @property
    def alive(self) -> bool:
        """Whether the engine accepts requests; False after `close` or a fatal error."""
        return self._thread is not None and not self._ended

    async def start(self) -> None:
        """Load the model. Raises what loading raises."""
        ready: Future[None] = Future()
        self._thread = threading.Thread(target=self._run, args=(ready,), name="foredraft-engine", daemon=True)
        self._thread.start()
        try:
            await asyncio.wrap_future(ready)
        except asyncio.CancelledError:
            self._inbox.put(None)  # the model that is still loading is not needed
            raise

    async def close(self) -> None:
        """Abort running requests, each with its finish event, and free the model. May be called twice."""
        if self._thread is not None:
            self._inbox.put(None)
            await asyncio.to_thread(self._thread.join)

    async def call(self, ask: Callable[[Engine], Result]) -> Result:
        """Run `ask` on the engine's thread between two rounds. Raises what it raises."""
        answer: Future[Result] = Future()

        def work(engine: Engine | None) -> None:
            if not answer.set_running_or_notify_cancel():
                return
            if engine is None:
                answer.set_exception(_not_loaded())
                return
            try:
                answer.set_result(ask(engine))
            except BaseException as error:  # noqa: BLE001 - raised in the caller
                answer.set_exception(error)

        self._post(work)
        return await asyncio.wrap_future(answer)

    async def stream(self, job: Job, ticket: Ticket | None = None) -> AsyncGenerator[Sequence[Event], None]:
        """The events of a new request, in groups of those available, at least one; the last is a FinishEvent.
        If the generator is closed early, the request is aborted and its KV cells are free before the next
        round.

        Raises RequestError and CapacityError before the first event, BackendError if the engine has stopped.
        """
        sink = _Sink(asyncio.get_running_loop(), ticket or Ticket())
        over = False

        def add(engine: Engine) -> None:
            sink.request = engine.add(
                EncodedPrompt(list(job.prompt), job.images),
                job.params,
                prediction=job.prediction,
                scope=job.scope,
                priority=job.priority,
                deadline_s=job.deadline_s,
                max_draft=job.max_draft,
                adapter=job.adapter,
            )
            self._sinks[sink.request] = sink
            if sink.ticket.notice is not None:
                self._deliver(engine.stop(sink.request, sink.ticket.notice))

        sink.ticket.handed_in(lambda: self._stop(sink))
        try:
            await self.call(add)
            while not over:
                await sink.filled.wait()
                sink.filled.clear()
                while sink.events:  # more events, and a failure after them, may have come meanwhile
                    events, sink.events = sink.events, []
                    over = isinstance(events[-1], FinishEvent)
                    yield events
                if sink.failed is not None:
                    raise sink.failed
        finally:
            if not over:
                self._abort(sink)

    def _abort(self, sink: _Sink) -> None:
        """Abort a request, even one whose `add` is still in the inbox: this comes after it."""

        def work(engine: Engine | None) -> None:
            if engine is not None and sink.request is not None:
                self._sinks.pop(sink.request, None)
                engine.abort(sink.request)

        with suppress(CapacityError):
            self._post(work)

    def _stop(self, sink: _Sink) -> None:
        """End a request with the text it has."""

        def work(engine: Engine | None) -> None:
            if engine is not None and sink.request is not None:
                ends = engine.stop(sink.request, sink.ticket.notice or "")
                self._deliver([*self._frames.rest(), *ends])

        with suppress(CapacityError):
            self._post(work)

    def _post(self, work: Work) -> None:
        with self._posting:  # work added after the end would never run, and its caller would wait forever
            if not self.alive:
                raise _not_loaded()
            self._inbox.put(work)

    # --- on the engine's thread ------------------------------------------------------------------------

    def _run(self, ready: Future[None]) -> None:
        ready.set_running_or_notify_cancel()
        try:
            engine = self._load()
        except BaseException as error:  # noqa: BLE001 - raised in `start`
            self._ended = True
            ready.set_exception(error)
            return
        engine.on_start = self._placed
        ready.set_result(None)
        try:
            while not engine.lost and self._work(engine):
                if not engine.idle:
                    self._deliver(self._round(engine))
            if engine.lost:
                self._lose(engine)
        except Exception:
            logger.exception("The engine has failed and cannot continue.")
        finally:
            self._refuse()
            self._end(engine)

    def _round(self, engine: Engine) -> Sequence[Event]:
        """The events of a round that are due."""
        events = self._step(engine)
        if engine.lost:
            self._refuse()  # before it is told: what is asked next has the model loaded again
        waited_for = not self._inbox.empty()  # possibly a new prompt, whose first round is long
        fresh = {request for request, sink in self._sinks.items() if not sink.begun}
        return self._frames.due(events, fresh, hurry=waited_for)

    def _lose(self, engine: Engine) -> None:
        """End all requests of an engine that lost a machine."""
        self._refuse()
        logger.warning("A machine that computes for the model was lost; it is loaded again when needed.")
        self._deliver(self._frames.rest())
        self._fail_all(
            engine,
            HostLostError(
                "A machine that computes for this model was lost.",
                hint="Try again: the model is then loaded again.",
            ),
        )

    def _refuse(self) -> None:
        """Take no more work."""
        with self._posting:
            self._ended = True

    def _placed(self, request: RequestView, cached: int) -> None:
        sink = self._sinks.get(request.id)
        if sink is not None:
            sink.ticket.cached, sink.ticket.placed = cached, True

    def _work(self, engine: Engine) -> bool:
        """Run submitted work; waits for some if the engine is idle. Returns False at the end."""
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
            self._deliver(self._frames.rest())
            reason = error if isinstance(error, ForedraftError) else BackendError("The engine failed.")
            self._fail_all(engine, reason)
            return []

    def _fail_all(self, engine: Engine, reason: ForedraftError) -> None:
        for request, sink in list(self._sinks.items()):
            _fail(sink, reason)
            self._sinks.pop(request)
            engine.abort(request)

    def _deliver(self, events: Sequence[Event]) -> None:
        by_request: dict[int, list[Event]] = {}
        for event in events:
            by_request.setdefault(event.request, []).append(event)
        for request, its_events in by_request.items():
            sink = self._sinks.get(request)
            if sink is None:
                continue
            _put(sink, its_events)
            sink.begun = True
            if isinstance(its_events[-1], FinishEvent):
                del self._sinks[request]

    def _end(self, engine: Engine) -> None:
        """End all requests and free the model; whatever fails here, every waiting caller gets an answer."""
        self._deliver(self._frames.rest())
        for request, sink in list(self._sinks.items()):
            try:
                self._deliver(engine.abort(request))
            except Exception:
                logger.exception("A request could not be ended.")
            if self._sinks.pop(request, None) is not None:
                _fail(sink, _not_loaded())
        try:
            engine.close()
        except Exception:
            logger.exception("The model could not be freed.")
        while True:
            try:
                work = self._inbox.get_nowait()
            except Empty:
                return
            if work is not None:
                work(None)


def _not_loaded() -> CapacityError:
    return CapacityError("The model is not loaded.", hint="Try again when it is.")


def _put(sink: _Sink, events: Sequence[Event]) -> None:
    def put() -> None:
        sink.events += events
        sink.filled.set()

    _soon(sink, put)


def _fail(sink: _Sink, error: ForedraftError) -> None:
    def fail() -> None:
        sink.failed = error
        sink.filled.set()

    _soon(sink, fail)


def _soon(sink: _Sink, do: Callable[[], None]) -> None:
    with suppress(RuntimeError):  # its event loop is closed
        sink.loop.call_soon_threadsafe(do)
