"""Metrics for Prometheus, counted from each request's events as its client gets them, and GET /metrics.

Names of metrics are vLLM's where it has them, with the prefix `foredraft_`. The request log describes an
answer by the same figures.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager, suppress
from dataclasses import dataclass, field
from math import ceil
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING, Any, Protocol

from fastapi import APIRouter
from fastapi.responses import Response
from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    generate_latest,
)

from foredraft.engine.engine import Engine
from foredraft.engine.scoring import PromptEvent
from foredraft.errors import CapacityError
from foredraft.server.request_log import current
from foredraft.server.worker import Ticket
from foredraft.types import Event, FinishEvent, TokenEvent

if TYPE_CHECKING:
    from foredraft.server.pool import ModelPool

FIRST_TOKEN_BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
"""Seconds."""

GAP_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5)
"""Seconds."""

MAX_GAPS = 4096
"""Gaps between tokens that one request keeps for its percentiles."""

ENGINE_WAIT_S = 0.25
"""Seconds that a scrape waits for an engine during a forward; after that its last values are used."""


@dataclass(slots=True)
class Watch:
    """An answer as it comes: times are `perf_counter` seconds. `count`: tokens until now. `end`: its last
    event.
    """

    began: float
    first: float | None = None
    last: float = 0.0
    gaps: list[float] = field(default_factory=list)
    prompt: Sequence[int] = ()
    ticket: Ticket = field(default_factory=Ticket)
    count: int = 0
    end: FinishEvent | None = None

    def tokens(self, now: float, count: int) -> list[float]:
        """Note `count` tokens that came together, at least one; returns the seconds from each token to the
        next. The time since the tokens before is divided among them.
        """
        self.count += count
        if self.first is None:
            self.first, count, each = now, count - 1, 0.0
        else:
            each = (now - self.last) / count
        self.last = now
        gaps = [each] * count
        self.gaps += gaps[: max(MAX_GAPS - len(self.gaps), 0)]
        return gaps


class Observer(Protocol):
    """Hears of every answer, on the event loop. Its methods must be fast, and not raise."""

    def began(self, watch: Watch) -> None:
        """An answer has been asked for."""

    def came(self, watch: Watch, gaps: Sequence[float], count: int) -> None:
        """`count` tokens have come together, with these seconds from each token to the next."""

    def ended(self, watch: Watch, caller: str, *, failed: bool) -> None:
        """An answer to this caller is over, whole if `watch.end` is there. `failed`: with an error."""


class Metrics:
    """All metrics of a server, in a registry of its own."""

    def __init__(self) -> None:
        self.observers: list[Observer] = []
        self._tokens: defaultdict[str, int] = defaultdict(int)
        self.registry = registry = CollectorRegistry()
        model, drafter = ["model"], ["model", "drafter"]

        def counter(name: str, text: str, labels: list[str]) -> Counter:
            return Counter(f"foredraft_{name}", text, labels, registry=registry)

        self._running = Gauge("foredraft_num_requests", "Requests in the server", model, registry=registry)
        self._load = {
            name: Gauge(f"foredraft_{name}", text, model, registry=registry)
            for name, text in (
                ("num_requests_running", "Requests in prefill or decoding"),
                ("num_requests_waiting", "Requests in the queue"),
                ("kv_cache_tokens", "Tokens of running requests in the KV cache"),
                ("prefix_cache_tokens", "Tokens of finished requests in the KV cache"),
                ("kv_cache_capacity_tokens", "Tokens that the KV cache can hold, of all sequences"),
                ("preemptions", "Requests preempted because the KV cache was full"),
            )
        }
        self._memory = Gauge(
            "foredraft_memory_bytes",
            "Memory of a model: weights, and at most KV cache and compute buffers",
            [*model, "part"],
            registry=registry,
        )
        ProcessCollector(registry=registry)
        self._requests = counter("requests", "Requests by finish reason", [*model, "finished_reason"])
        self._prompt = counter("prompt_tokens", "Tokens of prompts", model)
        self._cached = counter("prompt_tokens_cached", "Tokens of prompts found in the prefix cache", model)
        self._texts = counter("embedding_texts", "Texts embedded, or scored against a query", model)
        self._generated = counter("generation_tokens", "Tokens generated, as they come", model)
        self._drafts = counter("spec_decode_num_drafts", "Drafts verified", drafter)
        self._drafted = counter("spec_decode_num_draft_tokens", "Draft tokens verified", drafter)
        self._accepted = counter("spec_decode_num_accepted_tokens", "Draft tokens accepted", drafter)
        self._positions = counter(
            "spec_decode_num_accepted_tokens_per_pos", "Draft tokens accepted", [*model, "position"]
        )
        self._rounds = counter("rounds", "Target forwards that decoded", model)
        self._time = counter("round_seconds", "Time of rounds by part", [*model, "part"])
        self._compared = counter(
            "speedup_round_seconds", "Time of rounds, of requests with an estimated speedup", model
        )
        self._plain = counter(
            "speedup_plain_seconds", "Estimated time of plain rounds for the tokens of those requests", model
        )
        name, text = "foredraft_time_to_first_token_seconds", "Time from the request to its first token"
        self._first = Histogram(name, text, model, buckets=FIRST_TOKEN_BUCKETS, registry=registry)
        name, text = "foredraft_inter_token_latency_seconds", "Time between two tokens of a request"
        self._gap = Histogram(name, text, model, buckets=GAP_BUCKETS, registry=registry)

    def exposition(self) -> bytes:
        """The metrics in Prometheus's text format."""
        return generate_latest(self.registry)

    def tokens(self, model: str) -> int:
        """Tokens generated since the server started, including those of running answers."""
        return self._tokens.get(model, 0)

    def loaded(self, model: str, load: Mapping[str, int], memory: Mapping[str, int]) -> None:
        """Set the current load of a model, by the names of the gauges, and its memory (`ModelInfo`)."""
        for name, value in load.items():
            self._load[name].labels(model).set(value)
        for part, size in memory.items():
            self._memory.labels(model, part).set(size)

    def unloaded(self, model: str) -> None:
        """Set the gauges of a model that is no longer loaded to zero."""
        for gauge in self._load.values():
            gauge.labels(model).set(0)
        self._memory.remove_by_labels({"model": model})

    async def watch(
        self, model: str, answer: AsyncGenerator[Sequence[Event], None], watch: Watch | None = None
    ) -> AsyncGenerator[Sequence[Event], None]:
        """The events of an answer as they come, counted and noted in `watch`. Leaving it early counts the
        request as aborted.
        """
        entry = current()
        watch = watch or Watch(perf_counter())
        entry.watches.append(watch)
        # Looked up once; gaps only listed once they have a value.
        gaps: Histogram | None = None
        generated = self._generated.labels(model)
        self._running.labels(model).inc()
        failed = False
        for observer in self.observers:
            observer.began(watch)
        try:
            async with aclosing(answer):
                async for events in answer:
                    if isinstance(events[-1], FinishEvent):
                        watch.end = events[-1]
                    if count := sum(map(_generated, events)):
                        self._tokens[model] += count
                        generated.inc(count)
                        came = watch.tokens(perf_counter(), count)
                        for gap in came:
                            gaps = gaps or self._gap.labels(model)
                            gaps.observe(gap)
                        for observer in self.observers:
                            observer.came(watch, came, count)
                    if entry.transcript is not None:
                        entry.transcript.add(watch, events)
                    yield events
        except Exception:
            failed = True
            raise
        finally:
            failed = failed or (watch.end is not None and watch.end.error is not None)
            for observer in self.observers:
                observer.ended(watch, entry.identity or "", failed=failed)
            self._running.labels(model).dec()
            self._ended(model, watch, watch.end)
            entry.answers.append(describe(watch, watch.end))

    @contextmanager
    def embedding(self, model: str, *, texts: int, tokens: int) -> Iterator[None]:
        """A request for the vectors, or scores, of `texts` texts, counted while it runs and at its end."""
        facts: dict[str, Any] = {"finish": "abort", "texts": texts, "prompt_tokens": tokens}
        self._running.labels(model).inc()
        try:
            yield
            facts["finish"] = "stop"
            self._prompt.labels(model).inc(tokens)
            self._texts.labels(model).inc(texts)
        except Exception:
            facts["finish"] = "error"
            raise
        finally:
            self._running.labels(model).dec()
            self._requests.labels(model, facts["finish"]).inc()
            current().answers.append(facts)

    def _ended(self, model: str, watch: Watch, end: FinishEvent | None) -> None:
        self._requests.labels(model, str(end.reason) if end else "abort").inc()
        if watch.first is not None:
            self._first.labels(model).observe(watch.first - watch.began)
        if end is not None:
            self._count(model, end)

    def _count(self, model: str, end: FinishEvent) -> None:
        usage, stats = end.usage, end.speculation
        self._prompt.labels(model).inc(usage.prompt_tokens)
        self._cached.labels(model).inc(usage.cached_tokens)
        self._rounds.labels(model).inc(stats.rounds)
        for name, drafter in stats.drafters.items():
            self._drafts.labels(model, name).inc(drafter.drafts)
            self._drafted.labels(model, name).inc(drafter.drafted)
            self._accepted.labels(model, name).inc(drafter.accepted)
        for position, accepted in enumerate(stats.accepted_by_depth):
            self._positions.labels(model, str(position)).inc(accepted)
        for part, ms in stats.ms.items():
            self._time.labels(model, part).inc(1e-3 * ms)
        if stats.estimated_speedup is not None:
            seconds = 1e-3 * sum(stats.ms.values())
            self._compared.labels(model).inc(seconds)
            self._plain.labels(model).inc(stats.estimated_speedup * seconds)


def _generated(event: Event) -> bool:
    """Whether an event is a token that the model generated, not one of the prompt."""
    return isinstance(event, TokenEvent) and not isinstance(event, PromptEvent)


def describe(watch: Watch, end: FinishEvent | None) -> dict[str, Any]:
    """The figures of an answer for the request log."""
    facts: dict[str, Any] = {"finish": str(end.reason) if end else "abort"}
    if watch.first is not None:
        facts["time_to_first_token_ms"] = round(1e3 * (watch.first - watch.began), 1)
    if watch.gaps:
        gaps = sorted(watch.gaps)
        facts["inter_token_p50_ms"] = round(1e3 * median(gaps), 2)
        facts["inter_token_p99_ms"] = round(1e3 * gaps[ceil(0.99 * (len(gaps) - 1))], 2)
    if end is not None:
        stats = end.speculation
        facts |= {
            "prompt_tokens": end.usage.prompt_tokens,
            "cached_tokens": end.usage.cached_tokens,
            "completion_tokens": end.usage.completion_tokens,
            "drafters": {
                name: {"drafted": drafter.drafted, "accepted": drafter.accepted}
                for name, drafter in stats.drafters.items()
                if drafter.drafted
            },
            "estimated_speedup": stats.estimated_speedup,
            "not_drafting": stats.reason,
        }
        if end.error:
            facts["error"] = end.error
        if end.notice:
            facts["notice"] = end.notice
    return facts


def metrics_router(pool: ModelPool) -> APIRouter:
    """The route for the models of `pool`."""
    router = APIRouter()

    @router.get("/metrics", response_model=None)
    async def metrics() -> Response:
        for name, embedder in pool.embedders.items():
            load = {"num_requests_running": embedder.worker.requests}
            pool.metrics.loaded(name, load, embedder.info.memory)
        for name, served in pool.engines.items():
            with suppress(TimeoutError, CapacityError):
                async with asyncio.timeout(ENGINE_WAIT_S):
                    pool.metrics.loaded(name, await served.worker.call(load_of), served.info.memory)
        return Response(pool.metrics.exposition(), media_type=CONTENT_TYPE_LATEST)

    return router


def load_of(engine: Engine) -> dict[str, int]:
    """The engine's current load."""
    return {
        "num_requests_running": engine.running_count,
        "num_requests_waiting": engine.waiting_count,
        "kv_cache_tokens": engine.kv_tokens,
        "prefix_cache_tokens": engine.kept_tokens,
        "kv_cache_capacity_tokens": engine.kv_capacity,
        "preemptions": engine.preemptions,
    }
