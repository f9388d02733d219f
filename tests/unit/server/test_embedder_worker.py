from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import numpy as np
import pytest

from fake_embedder import FAILS, FakeEmbedder
from foredraft.embedding import Encoded, Vectors
from foredraft.errors import (
    BackendError,
    CapacityError,
    DeadlineExceededError,
    ModelFormatError,
    QueueFullError,
)
from foredraft.server.embedding.worker import MOST_TEXTS, MOST_TOKENS, EmbedderWorker

Scenario = Callable[[EmbedderWorker, FakeEmbedder], Awaitable[None]]


def run(scenario: Scenario) -> FakeEmbedder:
    embedder = FakeEmbedder()

    async def whole() -> None:
        worker = EmbedderWorker(lambda: embedder)
        assert not worker.alive
        await worker.start()
        try:
            await asyncio.wait_for(scenario(worker, embedder), 20)
        finally:
            embedder.go.set()
            await worker.close()
            await worker.close()

    asyncio.run(whole())
    assert embedder.closed
    return embedder


def texts_of(embedder: FakeEmbedder, *texts: str) -> list[Encoded]:
    return [embedder.encode(text) for text in texts]


async def compute(worker: EmbedderWorker, embedder: FakeEmbedder, *texts: str, waiting: int = 9) -> Vectors:
    return await worker.compute(texts_of(embedder, *texts), most_waiting=waiting)


async def begun(embedder: FakeEmbedder, batches: int = 1) -> None:
    while len(embedder.batches) < batches:
        await asyncio.sleep(0.001)


def test_requests_take_turns_text_by_text() -> None:
    async def scenario(worker: EmbedderWorker, embedder: FakeEmbedder) -> None:
        embedder.go.clear()
        first = asyncio.create_task(compute(worker, embedder, "first"))
        await begun(embedder)
        long = asyncio.create_task(compute(worker, embedder, *[f"long {n}" for n in range(2 * MOST_TEXTS)]))
        short = asyncio.create_task(compute(worker, embedder, "short"))
        while worker.requests < 3:
            await asyncio.sleep(0.001)
        embedder.go.set()
        await asyncio.gather(first, long, short)
        assert embedder.batches[1][:3] == ["long 0", "short", "long 1"]
        assert [len(batch) for batch in embedder.batches] == [1, MOST_TEXTS, MOST_TEXTS, 1]
        expected = embedder.compute(texts_of(embedder, *[f"long {n}" for n in range(2 * MOST_TEXTS)]))
        assert np.array_equal(await long, expected), "in order"
        assert worker.requests == 0

    run(scenario)


def test_a_computation_has_a_bound_in_tokens() -> None:
    async def scenario(worker: EmbedderWorker, embedder: FakeEmbedder) -> None:
        long = "x" * (MOST_TOKENS + 1)
        await compute(worker, embedder, long, "a", "b" * (MOST_TOKENS - 3), "c")
        assert [[text[:1] for text in batch] for batch in embedder.batches] == [["x"], ["a", "b"], ["c"]]

    run(scenario)


def test_what_nobody_waits_for_is_not_computed() -> None:
    async def scenario(worker: EmbedderWorker, embedder: FakeEmbedder) -> None:
        embedder.go.clear()
        first = asyncio.create_task(compute(worker, embedder, *["first"] * (MOST_TEXTS + 1)))
        await begun(embedder)
        second = asyncio.create_task(compute(worker, embedder, "second"))
        await asyncio.sleep(0.01)
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        embedder.go.set()
        await second
        assert embedder.batches == [["first"] * MOST_TEXTS, ["second"]]

    run(scenario)


def test_a_failure_ends_the_requests_in_it_alone() -> None:
    async def scenario(worker: EmbedderWorker, embedder: FakeEmbedder) -> None:
        with pytest.raises(BackendError, match="cannot be computed"):
            await compute(worker, embedder, FAILS)
        assert (await compute(worker, embedder, "fine")).shape == (1, 4)

    run(scenario)


def test_no_more_requests_than_may_wait() -> None:
    async def scenario(worker: EmbedderWorker, embedder: FakeEmbedder) -> None:
        embedder.go.clear()
        waiting = [asyncio.create_task(compute(worker, embedder, f"{n}", waiting=1)) for n in range(2)]
        await begun(embedder)
        with pytest.raises(QueueFullError):
            await compute(worker, embedder, "too many", waiting=1)
        embedder.go.set()
        await asyncio.gather(*waiting)

    run(scenario)


def test_a_request_has_a_time_limit() -> None:
    async def scenario(worker: EmbedderWorker, embedder: FakeEmbedder) -> None:
        embedder.go.clear()
        with pytest.raises(DeadlineExceededError, match=r"0\.05 seconds"):
            await worker.compute(texts_of(embedder, "slow"), most_waiting=1, deadline_s=0.05)
        embedder.go.set()
        await compute(worker, embedder, "next")

    run(scenario)


def test_closing_ends_what_waits() -> None:
    async def scenario(worker: EmbedderWorker, embedder: FakeEmbedder) -> None:
        embedder.go.clear()
        asked = asyncio.create_task(compute(worker, embedder, *["text"] * (MOST_TEXTS + 1)))
        await begun(embedder)
        closing = asyncio.create_task(worker.close())
        await asyncio.sleep(0.01)
        embedder.go.set()
        with pytest.raises(CapacityError, match="not loaded"):
            await asked
        await closing
        with pytest.raises(CapacityError, match="not loaded"):
            await compute(worker, embedder, "late")

    run(scenario)


def test_loading_fails_in_start() -> None:
    def load() -> FakeEmbedder:
        raise ModelFormatError("It is damaged.")

    async def scenario() -> None:
        worker = EmbedderWorker(load)
        with pytest.raises(ModelFormatError):
            await worker.start()
        assert not worker.alive
        await worker.close()

    asyncio.run(scenario())
