"""Which requests run and which wait: admission by priority, deadlines, preemption when the KV cache is full.

When the cache has no room for a forward, prefixes kept from ended requests go first, then the round's drafts
(`round`), then the youngest request of the lowest priority waits (`Scheduler.make_room`).
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, wait
from time import perf_counter

from foredraft.engine.images import fitting, least
from foredraft.engine.prefill import PromptRows, share
from foredraft.engine.prefix.cache import PrefixCache
from foredraft.engine.request import Request
from foredraft.errors import ForedraftError, OutOfKVError, QueueFullError
from foredraft.images import before_run
from foredraft.protocols import Model
from foredraft.types import FinishReason, Load

DISK_WAIT_S = 0.005
"""How long a round with nothing to compute waits for the disk; a new request may be delayed by as much."""

MAX_ADMITTED_TOKENS = 1 << 15
"""Tokens of prompts after which no more are admitted in a round: drafters read a prompt when it is admitted,
100,000 tokens in 200 ms, and every stream waits for that.
"""


class Scheduler:
    """Higher priority first, then first come, first served; as many at once as the model has sequences.

    `waiting` is in the order in which requests will be admitted. `preemptions` counts how often a request had
    to give its place up.
    """

    def __init__(self, model: Model) -> None:
        self._model = model
        self.cache = PrefixCache(model)
        self.waiting = WaitingQueue()
        self.prompt_rows = PromptRows()
        self.running: list[Request] = []
        self.preemptions = 0
        self.usual_adapter = ""
        """That of most requests: of these `Load.adapters` is empty."""
        self._full = False

    @property
    def idle(self) -> bool:
        return not self.waiting and not self.running

    @property
    def places(self) -> int:
        """Sequences that no request has."""
        return self._model.capabilities.sequences - len(self.running)

    # --- admission -------------------------------------------------------------------------------------

    def check_queue(self, max_waiting: int | None) -> None:
        """Raises QueueFullError if one more request would leave more than `max_waiting` without a place."""
        waiting = len(self.waiting)
        if max_waiting is not None and waiting >= max_waiting + self.places:
            raise QueueFullError(
                f"{waiting} requests are waiting already; at most {max_waiting} may.",
                hint="Try again when some of them are answered.",
            )

    def enqueue(self, request: Request) -> None:
        """Add a request to the queue."""
        self.waiting.add(request)

    def admit(self, on_admitted: Callable[[Request], None]) -> None:
        """Give waiting requests free sequences, with as many of their tokens as are still cached.

        `on_admitted` is called once for each request, not again when it comes back after it was preempted.
        After a preemption no request is admitted until a running one ends: they would only push each other
        out.

        A request whose prefix is on the disk waits until that is read; a place is reserved for it meanwhile.
        With nothing to compute this waits for the disk for up to `DISK_WAIT_S`.
        """
        self._admit(on_admitted)
        if not self.running:
            reading = [request.fetch.reading for request in self.waiting if request.fetch is not None]
            if wait(reading, DISK_WAIT_S, FIRST_COMPLETED).done:
                self._admit(on_admitted)

    def _admit(self, on_admitted: Callable[[Request], None]) -> None:
        places, started = self.places, 0
        for request in self.waiting:
            if not places or started >= MAX_ADMITTED_TOKENS or (self._full and self.running):
                return
            places -= 1
            if not self._has_fetched(request):
                continue
            view = request.view
            place = self.cache.acquire(request.reusable, view.scope, request.fetch, view.adapter)
            assert place is not None, "there are as many as there are places"
            self.waiting.remove(request)
            self._full, request.fetch = False, None
            request.seq, request.computed = place
            self.running.append(request)
            if not request.admitted_at:
                request.cached = request.computed
                request.admitted_at = perf_counter()
                on_admitted(request)
                started += len(request.view.tokens)

    def _has_fetched(self, request: Request) -> bool:
        """Whether what the disk has for a request, if anything, has been read."""
        if request.fetch is None:
            request.fetch = self.cache.fetch(request.reusable, request.view.scope)
        return request.fetch is None or request.fetch.done

    # --- rounds ----------------------------------------------------------------------------------------

    def expire(self, now: float) -> list[Request]:
        """Mark the requests whose deadline has passed at `now` (seconds) as aborted; returns them."""
        requests = [*self.running, *self.waiting]
        late = [request for request in requests if request.deadline is not None and now >= request.deadline]
        for request in late:
            where = f"after {request.generated} tokens" if request.generated else "before its first token"
            doing = "running" if request.seq >= 0 else "waiting"
            request.finish = FinishReason.ABORT
            request.error = f"The request's deadline passed while it was {doing}, {where}."
        return late

    def repair(self) -> None:
        """Undo what an interrupt in the middle of a round left half done.

        Rows that were computed but never accounted for are dropped. A request whose sampler is ahead of its
        history cannot go on with the same text, and one whose sequence lost rows not at all, so it ends with
        an error.
        """
        for request in self.running:
            held = self._model.length(request.seq)
            try:
                if held > request.computed:
                    self._model.truncate(request.seq, request.computed)
            except ForedraftError as error:
                request.fail(str(error))
            if held < request.computed or request.sampler.position != len(request.view.tokens):
                request.fail("interrupted in the middle of a round")

    def ended(self) -> list[Request]:
        """Requests that have a place and are at their end."""
        return [request for request in self.running if request.finish is not None]

    def decoding(self) -> list[Request]:
        """Running requests whose prompt is computed."""
        return [request for request in self.running if request.decoding and request.finish is None]

    def prefilling(self, room: int, *, decoding: bool = False) -> list[tuple[Request, int]]:
        """(request, rows) of prompts to prefill in a forward with room for `room` more rows; `decoding`: it
        also decodes.
        """
        prompts = [request for request in self.running if not request.decoding and request.finish is None]
        rows = self.prompt_rows.most(room, decoding=decoding)
        given = share(prompts, rows, self._model.capabilities.max_rows)
        return self._between_images(given, room) if self._model.vision is not None else given

    def _between_images(self, given: Sequence[tuple[Request, int]], room: int) -> list[tuple[Request, int]]:
        """The shares of prompts in a forward with room for `room` rows, so that none cuts an image where its
        rows belong together. A share may be larger for that, or none; whose turn it is goes first.
        """
        chunk = self._model.vision.chunk if self._model.vision is not None else 0
        found: list[tuple[Request, int]] = []
        for request, count in sorted(given, key=lambda share: share[0].turn()):
            rows = fitting(request.view.images, chunk, request.computed, min(count, room), room)
            if rows:
                found.append((request, rows))
                room -= rows
        return found

    @property
    def least_rows(self) -> int:
        """The rows that the next forward should have room for beside decoding: an image's that come next."""
        if self._model.vision is None:
            return 0
        chunk = self._model.vision.chunk
        coming = [request for request in self.running if not request.decoding and request.finish is None]
        return max((least(request.view.images, chunk, request.computed) for request in coming), default=0)

    def load(self, decoding: list[Request]) -> Load:
        """What the next forward carries, with all that decodes in it."""
        depth = to_recompute = 0
        for request in decoding:
            depth = max(depth, request.computed)
            to_recompute += self._model.to_recompute(request.seq)
        idle, adapters = self._model.idle_threads, self._adapters(decoding)
        if len(decoding) == len(self.running):
            return Load(len(decoding), 0, depth, to_recompute, idle, adapters)
        pending = sum(request.pending for request in self.running if not request.decoding)
        most = self.prompt_rows.most(self._model.capabilities.max_batch, decoding=bool(decoding))
        most = max(most, self.least_rows)
        return Load(len(decoding), min(pending, most), depth, to_recompute, idle, adapters)

    def _adapters(self, decoding: list[Request]) -> tuple[str, ...]:
        """`Load.adapters` of the requests that decode."""
        if not self._model.adapters:
            return ()
        found = sorted({request.view.adapter for request in decoding})
        return () if found in ([], [self.usual_adapter]) else tuple(found)

    def find(self, request_id: int) -> Request | None:
        """The request of that id, or None if it is over."""
        running = (request for request in self.running if request.id == request_id)
        return self.waiting.get(request_id) or next(running, None)

    # --- when the KV cache is full ---------------------------------------------------------------------

    def make_room(self, error: OutOfKVError) -> None:
        """Preempt a request, or end the only one that runs: an answer cannot be longer than the cache."""
        if self.ended() or self.preempt():
            return  # requests that are over leave room for the next round
        for request in self.running:
            if request.generated:
                request.finish = FinishReason.LENGTH
            else:
                request.fail(str(error))

    def preempt(self) -> bool:
        """Take the cells of the youngest running request of the lowest priority, and have it wait. Its tokens
        stay; they are computed again when its turn comes. False if no other request runs.
        """
        if len(self.running) < 2:
            return False
        request = max(self.running, key=Request.turn)
        self.running.remove(request)
        self.cache.drop(request.seq)
        request.seq, request.computed = -1, 0
        request.stats.preemptions += 1
        self.enqueue(request)
        self.preemptions += 1
        self._full = True
        return True

    def remove(self, request: Request, *, keep: bool) -> None:
        """Remove a request that is over; `keep` leaves its KV cells for a prompt that begins the same way."""
        if request.seq < 0:
            self.waiting.remove(request)
            if request.fetch is not None:
                request.fetch.cancel()
            return
        self.running.remove(request)
        self._full = False
        if keep:
            keys = request.keys
            self.cache.release(request.seq, keys[: before_run(keys, request.computed)])
        else:
            self.cache.drop(request.seq)


class WaitingQueue:
    """Requests in the order in which they will be admitted; some may be removed while it is iterated.

    Finding one takes the same time however many wait.
    """

    def __init__(self) -> None:
        self._in_turn: list[Request] = []
        self._by_id: dict[int, Request] = {}

    def __len__(self) -> int:
        return len(self._in_turn)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._in_turn.copy())

    def get(self, request_id: int) -> Request | None:
        """The request of that id, or None if it does not wait."""
        return self._by_id.get(request_id)

    def add(self, request: Request) -> None:
        """Add a request; its turn must not change until it is removed."""
        insort(self._in_turn, request, key=Request.turn)
        self._by_id[request.id] = request

    def remove(self, request: Request) -> None:
        """Remove a request. Raises KeyError if it does not wait."""
        del self._by_id[request.id]
        del self._in_turn[bisect_left(self._in_turn, request.turn(), key=Request.turn)]
