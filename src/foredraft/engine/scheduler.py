"""Who runs: requests waiting for a sequence, those decoding, and prompts being prefilled in chunks."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, wait
from time import perf_counter

from foredraft.engine.admission import turn
from foredraft.engine.prefill import PromptRows, share
from foredraft.engine.prefix.cache import PrefixCache
from foredraft.engine.request import Request
from foredraft.engine.waiting import Waiting
from foredraft.errors import ForedraftError, OutOfKVError
from foredraft.protocols import Model
from foredraft.types import FinishReason, Load

PATIENCE_S = 0.005
"""How long a round without anything to do waits for the disk: so long a new request may have to wait, too."""

STARTED_TOKENS = 1 << 15
"""Tokens of prompts after which no more are admitted in a round: drafters read a prompt when it is admitted,
100,000 tokens in 200 ms, and every stream waits for it.
"""


class Scheduler:
    """Higher priority first, then first come, first served; as many at once as the model has sequences.

    `waiting` is in the order in which requests will be admitted. `preemptions` counts how often one had to
    make room.
    """

    def __init__(self, model: Model) -> None:
        self._model = model
        self.cache = PrefixCache(model)
        self.waiting = Waiting()
        self.prompt_rows = PromptRows()
        self.running: list[Request] = []
        self.preemptions = 0
        self._full = False

    @property
    def idle(self) -> bool:
        return not self.waiting and not self.running

    @property
    def places(self) -> int:
        """Sequences that no request has."""
        return self._model.capabilities.sequences - len(self.running)

    def enqueue(self, request: Request) -> None:
        """The request waits for its turn."""
        self.waiting.add(request)

    def admit(self, on_admitted: Callable[[Request], None]) -> None:
        """Give waiting requests free sequences, with as much of their tokens as is still cached.

        `on_admitted` hears of each request once, not of one that comes back after it was preempted. After a
        preemption nobody comes in until a running request is over: they would only push each other out.

        One whose prefix is on the disk waits until that is read; a place is kept for it, and others go on.
        With nothing else to do this waits for the disk, too, for a moment.
        """
        self._admit(on_admitted)
        if not self.running:
            reading = [request.fetch.reading for request in self.waiting if request.fetch is not None]
            if wait(reading, PATIENCE_S, FIRST_COMPLETED).done:
                self._admit(on_admitted)

    def _admit(self, on_admitted: Callable[[Request], None]) -> None:
        places, started = self.places, 0
        for request in self.waiting:
            if not places or started >= STARTED_TOKENS or (self._full and self.running):
                return
            places -= 1
            if not self._has_fetched(request):
                continue
            place = self.cache.acquire(request.reusable, request.view.scope, request.fetch)
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
        """Whether all that the disk has for a request, if anything, is read."""
        if request.fetch is None:
            request.fetch = self.cache.fetch(request.reusable, request.view.scope)
        return request.fetch is None or request.fetch.done

    def mend(self) -> None:
        """Put right what an interrupt in the middle of a round has left behind.

        Rows that were computed but never accounted for are dropped. A request whose sampler is ahead of its
        history cannot go on with the same text, so it ends with an error.
        """
        for request in self.running:
            try:
                if self._model.length(request.seq) > request.computed:
                    self._model.truncate(request.seq, request.computed)
            except ForedraftError as error:
                request.fail(str(error))
            if request.sampler.position != len(request.view.tokens):
                request.fail("interrupted in the middle of a round")

    def ended(self) -> list[Request]:
        """Requests that have a place and are at their end."""
        return [request for request in self.running if request.finish is not None]

    def decoding(self) -> list[Request]:
        """Running requests whose prompt is computed."""
        return [request for request in self.running if request.decoding and request.finish is None]

    def prefilling(self, room: int, *, decoding: bool = False) -> list[tuple[Request, int]]:
        """(request, rows) of prompts to prefill in a forward with room for so many more rows, which also
        decodes or does not.
        """
        prompts = [request for request in self.running if not request.decoding and request.finish is None]
        rows = self.prompt_rows.most(room, decoding=decoding)
        return share(prompts, rows, self._model.capabilities.max_rows)

    def load(self, decoding: list[Request]) -> Load:
        """What the next forward carries, with all that decodes in it."""
        depth = owed = 0
        for request in decoding:
            depth = max(depth, request.computed)
            owed += self._model.owed(request.seq)
        if len(decoding) == len(self.running):
            return Load(len(decoding), 0, depth, owed)
        pending = sum(request.pending for request in self.running if not request.decoding)
        most = self.prompt_rows.most(self._model.capabilities.max_batch, decoding=bool(decoding))
        return Load(len(decoding), min(pending, most), depth, owed)

    def find(self, request_id: int) -> Request | None:
        """The request of that id, or None if it is over. No more are looked through than have a sequence."""
        running = (request for request in self.running if request.id == request_id)
        return self.waiting.get(request_id) or next(running, None)

    def make_room(self, error: OutOfKVError) -> None:
        """Out of KV: a request waits, or the last one ends. For an answer the cache is its whole context."""
        if self.ended() or self.preempt():
            return  # requests that are over leave room for the next round
        for request in self.running:
            if request.generated:
                request.finish = FinishReason.LENGTH
            else:
                request.fail(str(error))

    def preempt(self) -> bool:
        """The KV cache is full: of the running requests one of the lowest priority, the youngest of these,
        gives its cells back and waits. Its tokens stay; they are computed again when its turn comes. False
        if there is none but the one that needs room.
        """
        if len(self.running) < 2:
            return False
        request = max(self.running, key=turn)
        self.running.remove(request)
        self.cache.drop(request.seq)
        request.seq, request.computed = -1, 0
        request.stats.preemptions += 1
        self.enqueue(request)
        self.preemptions += 1
        self._full = True
        return True

    def remove(self, request: Request, *, keep: bool) -> None:
        """The request is over; `keep` leaves its KV cells for a prompt that begins the same way."""
        if request.seq < 0:
            self.waiting.remove(request)
            if request.fetch is not None:
                request.fetch.cancel()
            return
        self.running.remove(request)
        self._full = False
        if keep:
            self.cache.release(request.seq, request.view.tokens[: request.computed])
        else:
            self.cache.drop(request.seq)
