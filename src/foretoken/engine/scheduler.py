"""Who runs: requests waiting for a sequence, those decoding, and prompts being prefilled in chunks."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from time import perf_counter

from foretoken.engine.prefix_cache import PrefixCache
from foretoken.engine.request import Request
from foretoken.protocols import Model
from foretoken.types import FinishReason, Load


class Scheduler:
    """First come, first served, as many at once as the model has sequences."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self.cache = PrefixCache(model)
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []

    @property
    def idle(self) -> bool:
        return not self.waiting and not self.running

    def admit(self, on_admitted: Callable[[Request], None]) -> None:
        """Give waiting requests free sequences, with as much of their prompt as is still cached."""
        while self.waiting:
            request = self.waiting[0]
            place = self.cache.acquire(request.view.tokens, request.view.scope)
            if place is None:
                return
            self.waiting.popleft()
            request.seq, request.cached = place
            request.computed = request.cached
            request.admitted_at = perf_counter()
            self.running.append(request)
            on_admitted(request)

    def mend(self) -> None:
        """Put right what an interrupt in the middle of a round has left behind.

        Rows that were computed but never accounted for are dropped. A request whose sampler is ahead of its
        history cannot go on with the same text, so it ends with an error.
        """
        for request in self.running:
            if self._model.length(request.seq) > request.computed:
                self._model.truncate(request.seq, request.computed)
            if request.sampler.position != len(request.view.tokens):
                request.finish, request.error = FinishReason.ERROR, "interrupted in the middle of a round"

    def decoding(self) -> list[Request]:
        """Running requests whose prompt is computed."""
        return [request for request in self.running if request.decoding and request.finish is None]

    def prefilling(self, budget: int) -> list[tuple[Request, int]]:
        """(request, rows) of prompts to prefill in this forward, `budget` rows in all, oldest first."""
        chosen: list[tuple[Request, int]] = []
        for request in self.running:
            if request.decoding or request.finish is not None or budget <= 0:
                continue
            rows = min(request.pending, budget)
            chosen.append((request, rows))
            budget -= rows
        return chosen

    def load(self, decoding: list[Request]) -> Load:
        depth = max((request.computed for request in decoding), default=0)
        pending = sum(request.pending for request in self.running if not request.decoding)
        return Load(len(decoding), min(pending, self._model.capabilities.max_batch), depth)

    def find(self, request_id: int) -> Request | None:
        for request in (*self.running, *self.waiting):
            if request.id == request_id:
                return request
        return None

    def remove(self, request: Request, *, keep: bool) -> None:
        """The request is over; `keep` leaves its KV cells for a prompt that begins the same way."""
        if request.seq < 0:
            self.waiting.remove(request)
            return
        self.running.remove(request)
        if keep:
            self.cache.release(request.seq, request.view.tokens[: request.computed])
        else:
            self.cache.drop(request.seq)
