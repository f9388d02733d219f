"""GET /metrics of a front: what every replica and every front counts, told apart by the label `replica`.

A process that has ended, or does not answer, keeps its counters and histograms as they last were: a sum over
processes does not fall, and their rates are zero. Its gauges go. What it counted since the last scrape is
lost. A process that takes its place has another name, so no series starts again from zero.

A scrape reaches any of several fronts. It asks the others for what they count and for what they know of
processes that have ended, so that each of them gives the same answer. Of two fronts that knew the same
process, the one where it has counted more heard it last: counters only rise, and clocks may differ.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from time import time
from typing import TypeAlias

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
"""The label of what a front counts; of several it has their names at its end."""

MOST_ENDED = 64
"""Processes that have ended whose counters are kept: the last ones."""

LASTING = ("counter", "histogram")
"""Types of metrics that outlast their process."""

Read: TypeAlias = Callable[[], Awaitable[Mapping[str, bytes]]]
"""What each of several processes answers, by its name; those that do not answer soon are left out."""


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


@dataclass(frozen=True, slots=True)
class _Known:
    """What a process said last, at the Unix time `seen`. `counted`: the sum of what lasts, which rises."""

    body: str
    lasting: Sequence[Metric]
    counted: float
    seen: float

    @classmethod
    def of(cls, body: str, families: Sequence[Metric], seen: float) -> _Known:
        lasting = [family for family in families if family.type in LASTING]
        counted = sum(sample.value for family in lasting for sample in family.samples)
        return cls(body, lasting, counted, seen)


class ClusterMetrics:
    """One exposition of many. Keeps what processes that have ended counted, a few kilobytes each.

    `name`: of this front, `own` what it counts. `fronts` asks all fronts, also this one, what they `said`.
    """

    def __init__(
        self,
        own: Callable[[], bytes],
        *,
        name: str = FRONT,
        fronts: Read | None = None,
        most_ended: int = MOST_ENDED,
    ) -> None:
        self._own = own
        self._name = name
        self._fronts = fronts
        self._most_ended = most_ended
        self._known: dict[str, _Known] = {}
        self._turn = asyncio.Lock()

    async def exposition(self, replicas: Read) -> bytes:
        """The metrics of all processes."""
        found, others = await asyncio.gather(replicas(), self._others())
        async with self._turn:
            return await asyncio.to_thread(self.merged, found, others)

    async def said(self) -> bytes:
        """For another front: what this one counts, and what it knows of others."""
        async with self._turn:
            known = {name: (it.seen, it.body) for name, it in self._known.items()}
            return json.dumps({"own": self._own().decode(), "known": known}).encode()

    async def learn(self) -> None:
        """Take over what other fronts know: this one begins, and may soon be the only one."""
        others = await self._others()
        async with self._turn:
            await asyncio.to_thread(self.merged, {}, others)

    async def _others(self) -> Mapping[str, bytes]:
        said = {} if self._fronts is None else await self._fronts()
        return {name: body for name, body in said.items() if name != self._name}

    def merged(self, replicas: Mapping[str, bytes], fronts: Mapping[str, bytes]) -> bytes:
        """The expositions of replicas by name, what other fronts `said`, and this one's own. What is none is
        left out. Takes about 1 ms for each process and hundred series.
        """
        said = {name: json.loads(body) for name, body in fronts.items()}
        bodies = {name: body.decode(errors="replace") for name, body in replicas.items()}
        bodies |= {name: each["own"] for name, each in said.items()}
        bodies[self._name] = self._own().decode()
        found = {name: families for name, body in bodies.items() if (families := _read(body))}
        for each in said.values():
            self._take({name: it for name, it in each["known"].items() if name not in found})
        now = time()
        self._known |= {name: _Known.of(bodies[name], it, now) for name, it in found.items()}
        ended = sorted(self._known.keys() - found, key=lambda name: (self._known[name].seen, name))
        for name in ended[: max(len(ended) - self._most_ended, 0)]:
            del self._known[name]
        kept = [(name, it.lasting) for name, it in self._known.items() if name not in found]
        return generate_latest(_Joined([*found.items(), *kept]))

    def _take(self, known: Mapping[str, tuple[float, str]]) -> None:
        """What another front knows of processes that did not answer this one."""
        for name, (seen, body) in known.items():
            mine = self._known.get(name)
            if mine is None:
                self._known[name] = _Known.of(body, _read(body), seen)
                continue
            theirs = mine if body == mine.body else _Known.of(body, _read(body), seen)
            later = theirs if theirs.counted > mine.counted else mine
            self._known[name] = replace(later, seen=max(seen, mine.seen))


def _read(body: str) -> list[Metric]:
    try:
        return list(text_string_to_metric_families(body))
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


def cluster_metrics_router(metrics: ClusterMetrics, replicas: Read) -> APIRouter:
    """The route. `replicas`: the exposition of each of them by its name."""
    router = APIRouter()

    @router.get("/metrics", response_model=None)
    async def exposition() -> Response:
        return Response(await metrics.exposition(replicas), media_type=CONTENT_TYPE_LATEST)

    return router
