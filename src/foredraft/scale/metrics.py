"""GET /metrics of a front: what every replica and the front itself count, told apart by the label `replica`.

A replica that has ended, or does not answer, keeps its counters and histograms as they last were: a sum over
replicas does not fall, and their rates are zero. Its gauges go. What it counted since the last scrape is
lost. A replica that takes its place has another name, so no series starts again from zero.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

from fastapi import APIRouter
from fastapi.responses import Response
from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Counter,
    ProcessCollector,
    generate_latest,
)
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

FRONT = "front"
"""The label of what the front counts."""

MOST_ENDED = 64
"""Replicas that have ended whose counters are kept: the last ones."""

LASTING = ("counter", "histogram")
"""Types of metrics that outlast their replica."""


class FrontMetrics:
    """What a front counts: requests whose replica was lost before its answer was whole."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self._lost = Counter(
            "foredraft_replica_lost",
            "Requests whose replica ended: sent to another one again, or failed with an error",
            ["model", "then"],
            registry=self.registry,
        )

    def lost(self, model: str, *, again: bool) -> None:
        """A replica was lost; the request was sent `again`, or the client got an error."""
        self._lost.labels(model, "again" if again else "error").inc()

    def exposition(self) -> bytes:
        """The metrics in Prometheus's text format."""
        return generate_latest(self.registry)


class ReplicaMetrics:
    """One exposition of many. Keeps the counters of replicas that have ended, a few kilobytes each."""

    def __init__(self, most_ended: int = MOST_ENDED) -> None:
        self._most_ended = most_ended
        self._lasting: OrderedDict[str, list[Metric]] = OrderedDict()

    def merged(self, replicas: Mapping[str, bytes], own: bytes = b"") -> bytes:
        """The expositions of replicas by name, and the front's `own`. What is none is left out. Takes about
        1 ms for each replica and hundred series.
        """
        found = {name: families for name, body in replicas.items() if (families := _read(body))}
        for name, families in found.items():
            self._lasting[name] = [family for family in families if family.type in LASTING]
        ended = [name for name in self._lasting if name not in found]
        for name in ended[: max(len(ended) - self._most_ended, 0)]:
            del self._lasting[name]
        kept = {name: families for name, families in self._lasting.items() if name not in found}
        return generate_latest(_Joined([*found.items(), *kept.items(), (FRONT, _read(own))]))


def _read(body: bytes) -> list[Metric]:
    try:
        return list(text_string_to_metric_families(body.decode()))
    except ValueError:
        return []


class _Joined(Collector):
    """Families of several processes, each once, with the label `replica` on every sample."""

    def __init__(self, processes: Iterable[tuple[str, Sequence[Metric]]]) -> None:
        self._families: dict[str, Metric] = {}
        for name, families in processes:
            for family in families:
                joined = self._families.setdefault(
                    family.name, Metric(family.name, family.documentation, family.type)
                )
                joined.samples += [_labelled(sample, name) for sample in family.samples]

    def collect(self) -> Iterable[Metric]:
        return self._families.values()


def _labelled(sample: Sample, name: str) -> Sample:
    return sample._replace(labels={**sample.labels, "replica": name})


def cluster_metrics_router(
    read: Callable[[], Awaitable[Mapping[str, bytes]]], own: Callable[[], bytes]
) -> APIRouter:
    """The route. `read`: the exposition of each replica by its name; `own`: that of the front."""
    router = APIRouter()
    joined, turn = ReplicaMetrics(), asyncio.Lock()

    @router.get("/metrics", response_model=None)
    async def metrics() -> Response:
        found = await read()
        async with turn:
            body = await asyncio.to_thread(joined.merged, found, own())
        return Response(body, media_type=CONTENT_TYPE_LATEST)

    return router
