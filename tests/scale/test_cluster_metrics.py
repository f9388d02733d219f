"""The metrics of many replicas as one exposition, while replicas come and go."""

from __future__ import annotations

from collections.abc import Mapping

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

from foredraft.scale.metrics import FRONT, ReplicaMetrics, cluster_metrics_router
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
    text = ReplicaMetrics().merged({"x": one.text(), "y": other.text()}, Process().text())
    found = values(text)
    assert found["tokens_total", "x"] == 3
    assert found["tokens_total", "y"] == 4
    assert found["running", FRONT] == 0
    assert found["first_seconds_sum", "y"] == 1.5
    assert r'tokens_total{model="a \"model\"",replica="x"} 3.0' in text.decode()
    assert r'first_seconds_bucket{le="2.0",replica="y"} 1.0' in text.decode()


def test_sums_do_not_fall_when_a_replica_ends_and_no_series_starts_again() -> None:
    metrics, replicas = ReplicaMetrics(), {name: Process() for name in "abc"}
    last: dict[tuple[str, str], float] = {}
    for number in range(40):
        for process in replicas.values():
            process.tokens.labels("m").inc(number)
            process.first.observe(0.5)
        found = values(metrics.merged({name: process.text() for name, process in replicas.items()}))
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
    metrics, process = ReplicaMetrics(), Process()
    process.tokens.labels("m").inc(5)
    metrics.merged({"a": process.text()})
    process.tokens.labels("m").inc(1)
    assert values(metrics.merged({})) == {("tokens_total", "a"): 5, **histogram("a")}
    assert values(metrics.merged({"a": b'{"error": "busy"}'}))["tokens_total", "a"] == 5
    assert values(metrics.merged({"a": process.text()}))["tokens_total", "a"] == 6


def histogram(replica: str) -> Mapping[tuple[str, str], float]:
    return {("first_seconds_sum", replica): 0, ("first_seconds_count", replica): 0}


def test_only_the_last_ended_replicas_are_kept() -> None:
    metrics, process = ReplicaMetrics(most_ended=2), Process()
    for name in "abcd":
        metrics.merged({name: process.text()})
    assert {replica for _, replica in values(metrics.merged({"e": process.text()}))} == {"c", "d", "e"}


@pytest.mark.parametrize("body", [b"", b"{", b"\xff", b"# TYPE a counter\na_total x"])
def test_what_is_no_exposition_is_left_out(body: bytes) -> None:
    process = Process()
    found = values(ReplicaMetrics().merged({"a": body, "b": process.text()}))
    assert {replica for _, replica in found} == {"b"}


def test_a_front_answers_for_all() -> None:
    replica = Metrics()
    replica._requests.labels("m", "stop").inc()

    async def read() -> Mapping[str, bytes]:
        return {"r1": replica.exposition()}

    app = FastAPI()
    app.include_router(cluster_metrics_router(read, Metrics().exposition))
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
