"""Handing every event to whoever waits for it: several streams may be read from one engine in turns."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator

from foretoken.errors import RequestError
from foretoken.types import Event, FinishEvent


class Streams:
    """Routes the events of an engine's rounds. `pump` runs one round; `abort` ends a request."""

    def __init__(self, pump: Callable[[], Iterable[Event]], abort: Callable[[int], Iterable[Event]]) -> None:
        self._pump = pump
        self._abort = abort
        self._inboxes: dict[int, deque[Event]] = {}
        self._unclaimed: list[Event] = []

    def advance(self) -> None:
        """Run a round and put its events where they belong."""
        for event in self._pump():
            inbox = self._inboxes.get(event.request)
            if inbox is None:
                self._unclaimed.append(event)
            else:
                inbox.append(event)

    def take_unclaimed(self) -> list[Event]:
        """Events of requests that no stream follows, since the last call."""
        events, self._unclaimed = self._unclaimed, []
        return events

    def follow(self, request: int, *, is_open: Callable[[int], bool]) -> EventStream:
        """The events of a request from here on, with those that nobody has taken yet."""
        inbox = deque(event for event in self._unclaimed if event.request == request)
        self._unclaimed = [event for event in self._unclaimed if event.request != request]
        if request in self._inboxes or not (inbox or is_open(request)):
            raise RequestError(f"There is no request {request} to follow in this engine.")
        self._inboxes[request] = inbox
        return EventStream(request, inbox, self)

    def leave(self, request: int, *, finished: bool) -> None:
        """The stream is over; a request that is not finished is aborted."""
        self._inboxes.pop(request, None)
        if not finished:
            for _ in self._abort(request):
                pass


class EventStream(Iterator[Event]):
    """The events of one request: a TokenEvent for every token, then a FinishEvent.

    Reading it runs the engine, for all requests. Closing it early, or dropping it, aborts its request.
    """

    def __init__(self, request: int, inbox: deque[Event], streams: Streams) -> None:
        self.request = request
        self._inbox = inbox
        self._streams = streams
        self._over = False

    def __next__(self) -> Event:
        if self._over:
            raise StopIteration
        while not self._inbox:
            self._streams.advance()
        event = self._inbox.popleft()
        if isinstance(event, FinishEvent):
            self._over = True
            self._streams.leave(self.request, finished=True)
        return event

    def close(self) -> None:
        """Abort the request if it is still running. May be called twice."""
        if not self._over:
            self._over = True
            self._streams.leave(self.request, finished=False)

    def __enter__(self) -> EventStream:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()
