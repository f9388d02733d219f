"""What the server says about what it did: metrics, and what the log says of an answer."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncGenerator, Sequence
from dataclasses import replace

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from foredraft.server.metrics import Metrics, Watch, describe
from foredraft.types import (
    DrafterStats,
    Event,
    FinishEvent,
    FinishReason,
    SpeculationStats,
    Timings,
    TokenEvent,
    Usage,
)
from http_server import Running, serving

PAUSE_S = 0.05
"""Seconds before the last two of an answer's four tokens, which come together."""

STATS = SpeculationStats(
    configured="auto",
    active=True,
    reason=None,
    rounds=2,
    acceptance_rate=0.5,
    acceptance_length=2.0,
    estimated_speedup=1.5,
    drafters={"suffix": DrafterStats(1, 4, 2, 0.1), "recycle": DrafterStats()},
    accepted_by_depth=(1, 1),
    exact=True,
    exact_reason="",
    ms={"draft": 1.0, "verify": 2000.0},
)
END = FinishEvent(1, FinishReason.STOP, "", Usage(10, 4, 6, 2, 2), Timings(10, 1.0, 4, 2.0, 4, 2), STATS)


async def events(*, finished: bool = True) -> AsyncGenerator[Sequence[Event], None]:
    for token in (0, 1):
        yield [TokenEvent(1, token, "x", "target")]
    await asyncio.sleep(PAUSE_S)
    yield [TokenEvent(1, token, "x", "target") for token in (2, 3)]
    if finished:
        yield [END]


def values(text: str) -> dict[tuple[str, ...], float]:
    """Every sample by name and the values of its labels."""
    return {
        (sample.name, *(sample.labels[label] for label in sorted(sample.labels))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


async def drained(metrics: Metrics, stream: AsyncGenerator[Sequence[Event], None]) -> list[Event]:
    return [event async for events in metrics.watch("m", stream) for event in events]


def run(metrics: Metrics, stream: AsyncGenerator[Sequence[Event], None]) -> list[Event]:
    return asyncio.run(drained(metrics, stream))


def test_everything_of_a_request_is_counted() -> None:
    metrics = Metrics()
    assert run(metrics, events())[-1] == END
    found = values(metrics.exposition().decode())
    assert found[("foredraft_requests_total", "stop", "m")] == 1
    assert found[("foredraft_prompt_tokens_total", "m")] == 10
    assert found[("foredraft_prompt_tokens_cached_total", "m")] == 6
    assert found[("foredraft_generation_tokens_total", "m")] == 4
    assert found[("foredraft_spec_decode_num_drafts_total", "suffix", "m")] == 1
    assert found[("foredraft_spec_decode_num_draft_tokens_total", "suffix", "m")] == 4
    assert found[("foredraft_spec_decode_num_accepted_tokens_total", "suffix", "m")] == 2
    assert found[("foredraft_spec_decode_num_accepted_tokens_per_pos_total", "m", "1")] == 1
    assert found[("foredraft_round_seconds_total", "m", "verify")] == 2.0
    assert found[("foredraft_speedup_round_seconds_total", "m")] == pytest.approx(2.001)
    assert found[("foredraft_speedup_plain_seconds_total", "m")] == pytest.approx(1.5 * 2.001)
    assert found[("foredraft_inter_token_latency_seconds_count", "m")] == 3
    assert PAUSE_S <= found[("foredraft_inter_token_latency_seconds_sum", "m")] < 20 * PAUSE_S
    assert found[("foredraft_time_to_first_token_seconds_count", "m")] == 1
    assert found[("foredraft_num_requests", "m")] == 0


def test_tokens_that_come_together_share_the_wait_for_them() -> None:
    watch = Watch(0.0)
    watch.tokens(0.1, 1)
    assert watch.tokens(0.3, 2) == pytest.approx([0.1, 0.1])
    facts = describe(watch, END)
    assert facts["inter_token_p50_ms"] == facts["inter_token_p99_ms"] == 100


def test_a_request_without_an_estimated_speedup_is_not_compared() -> None:
    metrics = Metrics()

    async def unknown() -> AsyncGenerator[Sequence[Event], None]:
        yield [replace(END, speculation=replace(STATS, estimated_speedup=None))]

    run(metrics, unknown())
    found = values(metrics.exposition().decode())
    assert found[("foredraft_round_seconds_total", "m", "verify")] == 2.0
    assert ("foredraft_speedup_round_seconds_total", "m") not in found


def test_tokens_are_counted_as_they_come() -> None:
    metrics = Metrics()

    async def half() -> float:
        answer = metrics.watch("m", events())
        await anext(answer)
        found = values(metrics.exposition().decode())
        await answer.aclose()
        return found[("foredraft_generation_tokens_total", "m")]

    assert asyncio.run(half()) == 1


def test_a_request_that_was_left_is_aborted() -> None:
    metrics = Metrics()
    run(metrics, events(finished=False))
    found = values(metrics.exposition().decode())
    assert found[("foredraft_generation_tokens_total", "m")] == 4
    assert found[("foredraft_requests_total", "abort", "m")] == 1
    assert found[("foredraft_num_requests", "m")] == 0


def test_what_the_log_says_of_an_answer() -> None:
    facts = describe(Watch(0.0, 0.001, 0.0, [0.1]), END)
    assert facts["completion_tokens"] == 4
    assert facts["estimated_speedup"] == 1.5
    assert facts["drafters"] == {"suffix": {"drafted": 4, "accepted": 2}}
    assert {"time_to_first_token_ms", "inter_token_p50_ms", "inter_token_p99_ms", "not_drafting"} <= set(
        facts
    )


@pytest.mark.parametrize(
    ("gaps", "middle", "slowest"),
    [([0.001, 0.003], 2.0, 3.0), ([0.002], 2.0, 2.0), ([0.001] * 98 + [0.5], 1.0, 500.0)],
)
def test_the_99th_percentile_of_few_gaps_is_not_below_their_median(
    gaps: list[float], middle: float, slowest: float
) -> None:
    facts = describe(Watch(0.0, 0.001, 0.0, gaps), END)
    assert (facts["inter_token_p50_ms"], facts["inter_token_p99_ms"]) == (middle, slowest)


def test_metrics_of_a_running_server() -> None:
    with serving() as running:
        ask(running)
        found = values(httpx.get(f"{running.url}/metrics").text)
    assert found[("foredraft_generation_tokens_total", "fake")] > 0
    assert found[("foredraft_num_requests_running", "fake")] == 0
    assert found[("foredraft_kv_cache_tokens", "fake")] == 0
    assert found[("foredraft_kv_cache_capacity_tokens", "fake")] == 4 * 4096
    assert sum(value for name, value in found.items() if name[0] == "foredraft_requests_total") == 1


def test_what_a_model_takes_is_said_while_it_is_loaded() -> None:
    metrics = Metrics()
    load = {"num_requests_running": 1, "prefix_cache_tokens": 5}
    for model in ("m", "other"):
        metrics.loaded(model, load, {"weights": 7, "kv_cache": 9})
    found = values(metrics.exposition().decode())
    assert found[("foredraft_memory_bytes", "m", "kv_cache")] == 9
    assert found[("foredraft_prefix_cache_tokens", "m")] == 5
    metrics.unloaded("m")
    found = values(metrics.exposition().decode())
    assert ("foredraft_memory_bytes", "m", "kv_cache") not in found
    assert found[("foredraft_memory_bytes", "other", "weights")] == 7
    assert found[("foredraft_prefix_cache_tokens", "m")] == 0


@pytest.mark.skipif(sys.platform != "linux", reason="it reads /proc")
def test_the_process_is_measured_too() -> None:
    found = values(Metrics().exposition().decode())
    assert found[("process_resident_memory_bytes",)] > 1 << 20


def test_the_models_endpoint_says_what_a_model_takes() -> None:
    with serving() as running:
        ask(running)
        memory = running.engines["fake"].model.info.memory
        assert isinstance(memory, dict)
        memory |= {"weights": 7, "kv_cache": 9}
        [listed] = httpx.get(f"{running.url}/v1/models").json()["data"]
        found = values(httpx.get(f"{running.url}/metrics").text)
    assert listed["meta"]["memory_bytes"] == {"weights": 7, "kv_cache": 9}
    assert found[("foredraft_memory_bytes", "fake", "weights")] == 7
    assert found[("foredraft_prefix_cache_tokens", "fake")] > 0


def ask(running: Running) -> None:
    body = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 20, "temperature": 0}
    assert httpx.post(f"{running.url}/v1/chat/completions", json=body, timeout=30).status_code == 200
