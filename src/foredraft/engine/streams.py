"""The events of requests: routed to the streams that are read, and folded into whole answers.

Several streams may be read from one engine in turns. A whole answer is the fold of its events, so that there
is one code path for streaming and not.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator

from foredraft.errors import BackendError, RequestError
from foredraft.types import Completion, Event, FinishEvent, TokenEvent


class Streams:
    """Routes the events of an engine. `pump` runs one round and returns its events; `endings` returns the
    last events of requests that the round ended; `abort` ends a request that is still open, `is_open` tells
    whether it is.
    """

    def __init__(
        self,
        pump: Callable[[], Iterable[Event]],
        endings: Callable[[], Iterable[Event]],
        abort: Callable[[int], Iterable[Event]],
        is_open: Callable[[int], bool],
    ) -> None:
        self._pump = pump
        self._endings = endings
        self._abort = abort
        self._is_open = is_open
        self._inboxes: dict[int, deque[Event]] = {}
        self._unclaimed: list[Event] = []
        self._dropped: list[int] = []

    def advance(self) -> None:
        """Run a round and deliver its events."""
        self.settle()
        self.deliver(self._pump())
        self.settle()

    def settle(self) -> None:
        """Finish the requests that have ended, and abort those whose streams were closed."""
        self.abort_dropped()
        self.deliver(self._endings())

    def deliver(self, events: Iterable[Event]) -> None:
        """Put each event into the inbox of the stream that follows its request, if there is one."""
        for event in events:
            if event.request not in self._dropped:
                self._inboxes.get(event.request, self._unclaimed).append(event)

    def take_unclaimed(self) -> list[Event]:
        """Events of requests that no stream follows, since the last call."""
        events, self._unclaimed = self._unclaimed, []
        return events

    def claim(self, request: int) -> list[Event]:
        """The unclaimed events of one request."""
        claimed = [event for event in self._unclaimed if event.request == request]
        self._unclaimed = [event for event in self._unclaimed if event.request != request]
        return claimed

    def knows(self, request: int) -> bool:
        """Whether a request is open or has events that were not taken yet."""
        return self._is_open(request) or any(event.request == request for event in self._unclaimed)

    def follow(self, request: int, *, generated: int) -> EventStream:
        """The events of a request, from its first on; it has `generated` tokens so far.

        Raises RequestError for a request that is not known, or whose events were already taken.
        """
        if request in self._inboxes:
            raise RequestError(f"Request {request} is already being read.")
        if not self.knows(request):
            raise RequestError(f"There is no request {request} in this engine.")
        inbox = deque(self.claim(request))
        if sum(isinstance(event, TokenEvent) for event in inbox) < generated:
            raise RequestError(f"Events of request {request} were already taken by step().")
        self._inboxes[request] = inbox
        return EventStream(request, inbox, self)

    def more(self, request: int) -> None:
        """Run the engine for a stream whose inbox is empty. Raises RequestError if its request is gone.

        Requests that ended in the round before are finished only now, so that their readers get the last
        token first.
        """
        if not self._is_open(request):
            raise RequestError(f"Request {request} ended without a last event: its engine was closed.")
        self.settle()
        if not self._inboxes[request]:
            self.deliver(self._pump())

    def leave(self, request: int) -> None:
        """Forget a stream that was read to its end."""
        self._inboxes.pop(request, None)

    def drop(self, request: int) -> None:
        """Give a stream up: its request is aborted before the next round.

        Not at once: a stream may be collected as garbage in the middle of a round.
        """
        if self._inboxes.pop(request, None) is not None:
            self._dropped.append(request)

    def abort_dropped(self) -> None:
        """Abort the requests of streams that were given up."""
        while self._dropped:
            for _ in self._abort(self._dropped.pop()):
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
            self._streams.more(self.request)
        event = self._inbox.popleft()
        if isinstance(event, FinishEvent):
            self._over = True
            self._streams.leave(self.request)
        return event

    def close(self) -> None:
        """Abort the request if it is still running. May be called twice."""
        if not self._over:
            self._over = True
            self._streams.drop(self.request)

    def __enter__(self) -> EventStream:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()


def fold(events: Iterable[Event]) -> Completion:
    """The completion that one request's events describe. Raises BackendError if they have no end."""
    tokens: list[TokenEvent] = []
    for event in events:
        if isinstance(event, FinishEvent):
            return Completion(
                text="".join(token.text for token in tokens) + event.text,
                tokens=tuple(token.token for token in tokens),
                origins=tuple(token.origin for token in tokens),
                logprobs=tuple(token.logprob for token in tokens if token.logprob is not None),
                finish_reason=event.reason,
                usage=event.usage,
                timings=event.timings,
                speculation=event.speculation,
                error=event.error,
                notice=event.notice,
            )
        tokens.append(event)
    raise BackendError("A request's events ended without a finish event.")
