"""The metrics of many replicas as one exposition, while replicas come and go."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from random import Random

import httpx
import pytest
from fastapi import FastAPI
from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    generate_latest,
)
from prometheus_client.parser import text_string_to_metric_families
from starlette.testclient import TestClient

from foredraft.scale.metrics import FRONT, ClusterMetrics, cluster_metrics_router
from foredraft.server.metrics import Metrics
from fronted import fronted


class Process:
    """A replica's metrics."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.tokens = Counter("tokens", 'Tokens, "all"', ["model"], registry=self.registry)
        self.running = Gauge("running", "Requests", registry=self.registry)
        self.first = Histogram("first_seconds", "Time", buckets=(1, 2), registry=self.registry)

    def text(self) -> bytes:
        return generate_latest(self.registry)


def nothing() -> bytes:
    """What a front counts that counts nothing."""
    return b""


def values(text: bytes) -> dict[tuple[str, str], float]:
    """Each sample's value, by name and replica; fails on a family that is there twice."""
    families = list(text_string_to_metric_families(text.decode()))
    names = [family.name for family in families]
    assert len(set(names)) == len(names)
    assert text.count(b"# TYPE tokens_total counter") <= 1
    return {
        (sample.name, sample.labels["replica"]): sample.value
        for family in families
        for sample in family.samples
        if "le" not in sample.labels
    }


def test_each_sample_says_whose_it_is() -> None:
    one, other = Process(), Process()
    one.tokens.labels('a "model"').inc(3)
    other.tokens.labels('a "model"').inc(4)
    other.first.observe(1.5)
    text = ClusterMetrics(Process().text).merged({"x": one.text(), "y": other.text()}, {})
    found = values(text)
    assert found["tokens_total", "x"] == 3
    assert found["tokens_total", "y"] == 4
    assert found["running", FRONT] == 0
    assert found["first_seconds_sum", "y"] == 1.5
    assert r'tokens_total{model="a \"model\"",replica="x"} 3.0' in text.decode()
    assert r'first_seconds_bucket{le="2.0",replica="y"} 1.0' in text.decode()


def test_sums_do_not_fall_when_a_replica_ends_and_no_series_starts_again() -> None:
    metrics, replicas = ClusterMetrics(nothing), {name: Process() for name in "abc"}
    last: dict[tuple[str, str], float] = {}
    for number in range(40):
        for process in replicas.values():
            process.tokens.labels("m").inc(number)
            process.first.observe(0.5)
        found = values(metrics.merged({name: process.text() for name, process in replicas.items()}, {}))
        lasting = {
            key: value for key, value in found.items() if key[0].endswith(("_total", "_count", "_sum"))
        }
        assert all(found[key] >= value for key, value in last.items())  # also those that have ended
        assert {replica for name, replica in found if name == "running"} == set(replicas)
        last = lasting
        if number % 7 == 3:
            del replicas[min(replicas)]
            replicas[f"new{number:02}"] = Process()
    assert sum(value for (name, _), value in last.items() if name == "tokens_total") > 0


def test_what_a_busy_replica_counts_is_there_again_when_it_answers() -> None:
    metrics, process = ClusterMetrics(nothing), Process()
    process.tokens.labels("m").inc(5)
    metrics.merged({"a": process.text()}, {})
    process.tokens.labels("m").inc(1)
    assert values(metrics.merged({}, {})) == {("tokens_total", "a"): 5, **histogram("a")}
    assert values(metrics.merged({"a": b'{"error": "busy"}'}, {}))["tokens_total", "a"] == 5
    assert values(metrics.merged({"a": process.text()}, {}))["tokens_total", "a"] == 6


def histogram(replica: str) -> Mapping[tuple[str, str], float]:
    return {("first_seconds_sum", replica): 0, ("first_seconds_count", replica): 0}


def test_only_the_last_ended_replicas_are_kept() -> None:
    metrics, process = ClusterMetrics(nothing, most_ended=2), Process()
    for name in "abcd":
        metrics.merged({name: process.text()}, {})
    assert {replica for _, replica in values(metrics.merged({"e": process.text()}, {}))} == {"c", "d", "e"}


class Cluster:
    """Replicas, and fronts that ask one another. Those that are `away` do not answer each other."""

    def __init__(self, most_ended: int = 64) -> None:
        self.replicas: dict[str, Process] = {}
        self.fronts: dict[str, ClusterMetrics] = {}
        self.own: dict[str, Process] = {}
        self.away: set[str] = set()
        self._most = most_ended

    def start(self, name: str) -> None:
        """Another front."""
        own = self.own[name] = Process()
        self.fronts[name] = ClusterMetrics(own.text, name=name, fronts=self.said, most_ended=self._most)
        asyncio.run(self.fronts[name].learn())

    async def said(self) -> Mapping[str, bytes]:
        return {name: await front.said() for name, front in self.fronts.items() if name not in self.away}

    async def read(self) -> Mapping[str, bytes]:
        return {name: process.text() for name, process in self.replicas.items()}

    def scrape(self, front: str) -> dict[tuple[str, str], float]:
        return values(asyncio.run(self.fronts[front].exposition(self.read)))


def tokens(found: Mapping[tuple[str, str], float]) -> dict[str, float]:
    return {replica: value for (name, replica), value in found.items() if name == "tokens_total"}


def test_every_front_gives_the_same_answer() -> None:
    cluster = Cluster()
    for number, name in enumerate(("front-a", "front-b"), start=1):
        cluster.start(name)
        cluster.own[name].tokens.labels("m").inc(number)
    cluster.replicas["r"] = Process()
    cluster.replicas["r"].tokens.labels("m").inc(5)
    expected = {"front-a": 1.0, "front-b": 2.0, "r": 5.0}
    assert tokens(cluster.scrape("front-a")) == tokens(cluster.scrape("front-b")) == expected
    cluster.replicas["r"].tokens.labels("m").inc(1)
    assert tokens(cluster.scrape("front-a")) == expected | {"r": 6.0}
    del cluster.replicas["r"]  # only front-a knows of the last token
    for name in ("front-b", "front-a", "front-b"):
        found = cluster.scrape(name)
        assert tokens(found) == expected | {"r": 6.0}
        assert {replica for kind, replica in found if kind == "running"} == {"front-a", "front-b"}


def test_a_front_that_has_ended_keeps_its_counters_and_a_new_one_knows_the_ended() -> None:
    cluster = Cluster()
    cluster.start("front-a")
    cluster.own["front-a"].tokens.labels("m").inc(3)
    cluster.replicas["r"] = Process()
    cluster.replicas["r"].tokens.labels("m").inc(5)
    cluster.scrape("front-a")
    del cluster.replicas["r"]
    cluster.start("front-b")
    assert tokens(cluster.scrape("front-b")) == {"front-a": 3.0, "r": 5.0}
    del cluster.fronts["front-a"]
    cluster.start("front-c")
    assert tokens(cluster.scrape("front-c")) == {"front-a": 3.0, "r": 5.0}
    del cluster.fronts["front-b"]
    assert tokens(cluster.scrape("front-c")) == {"front-a": 3.0, "r": 5.0}


def test_sums_over_several_fronts_never_fall() -> None:
    cluster = Cluster()
    for name in ("front-0", "front-1", "front-2"):
        cluster.start(name)
    cluster.replicas |= {name: Process() for name in "abc"}
    counted, last, random = 0.0, 0.0, Random(3)
    scraped = "front-0"
    for number in range(80):
        for process in (*cluster.replicas.values(), *cluster.own.values()):
            process.tokens.labels("m").inc(number)
            counted += number
        cluster.away = {random.choice(sorted(cluster.fronts.keys() - {scraped}))}  # it has told no other
        scraped = random.choice(sorted(cluster.fronts.keys() - cluster.away))
        found = tokens(cluster.scrape(scraped))
        assert last <= sum(found.values()) <= counted
        last = sum(found.values())
        if number % 11 == 3:
            cluster.replicas.pop(min(cluster.replicas))
            cluster.replicas[f"new{number:02}"] = Process()
        if number % 17 == 5:
            cluster.fronts.pop(gone := min(cluster.fronts.keys() - {scraped}))
            del cluster.own[gone]
            cluster.away = set()
            cluster.start(f"front-{number}")
    cluster.away = set()
    everything = [sum(tokens(cluster.scrape(name)).values()) for name in cluster.fronts]
    assert everything == [everything[0]] * 3


def test_fronts_agree_on_which_ended_replicas_are_kept() -> None:
    cluster = Cluster(most_ended=2)
    cluster.start("front-a")
    cluster.start("front-b")
    for number, name in enumerate("pqrst"):
        cluster.replicas = {name: Process()}
        cluster.replicas[name].tokens.labels("m").inc()
        cluster.scrape(("front-a", "front-b")[number % 2])
    cluster.replicas = {}
    for _ in range(2):
        for front in cluster.fronts:
            assert set(tokens(cluster.scrape(front))) == {"s", "t"}


@pytest.mark.parametrize("body", [b"", b"{", b"\xff", b"# TYPE a counter\na_total x"])
def test_what_is_no_exposition_is_left_out(body: bytes) -> None:
    process = Process()
    found = values(ClusterMetrics(nothing).merged({"a": body, "b": process.text()}, {}))
    assert {replica for _, replica in found} == {"b"}


def test_a_front_answers_for_all() -> None:
    replica = Metrics()
    replica._requests.labels("m", "stop").inc()

    async def read() -> Mapping[str, bytes]:
        return {"r1": replica.exposition()}

    app = FastAPI()
    app.include_router(cluster_metrics_router(ClusterMetrics(Metrics().exposition), read))
    with TestClient(app) as client:
        answer = client.get("/metrics")
    assert answer.headers["content-type"] == CONTENT_TYPE_LATEST
    assert 'foredraft_requests_total{finished_reason="stop",model="m",replica="r1"} 1.0' in answer.text
    assert 'process_start_time_seconds{replica="front"}' in answer.text


def test_the_front_has_what_all_its_replicas_count_and_what_became_of_lost_requests() -> None:
    body = {"prompt": "some words", "max_tokens": 5, "temperature": 0}
    stream = {**body, "max_tokens": 4000, "ignore_eos": True, "stream": True}
    with fronted() as front:
        near = front.replicas["fake"]
        near.cut = [0]  # lost at once: sent to another replica
        for _ in range(4):
            assert httpx.post(f"{front.url}/v1/completions", json=body, timeout=30).status_code == 200
        near.cut = [3]  # lost in the middle of a stream
        broken = httpx.post(f"{front.url}/v1/completions", json=stream, timeout=30)
        assert "replica_lost" in broken.text
        text = httpx.get(f"{front.url}/metrics", timeout=30).text
    found = values(text.encode())
    counted = [line for line in text.splitlines() if line.startswith("foredraft_requests_total{")]
    assert sum(float(line.split()[-1]) for line in counted) == 5  # also the one that was broken off
    assert all(f'replica="replica-{number}"' in str(counted) for number in range(2))
    assert 'foredraft_replica_lost_total{model="fake",replica="front",then="again"} 1.0' in text
    assert 'foredraft_replica_lost_total{model="fake",replica="front",then="error"} 1.0' in text
    assert found["process_start_time_seconds", "front"] > 0
