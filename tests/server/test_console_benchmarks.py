"""Benchmarks from the page: what is measured, that nothing is drafted from the other side's answer,
cancelling, and the reports that are kept.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from foredraft import Engine
from foredraft.protocols import UNKEPT
from foredraft.server.auth import hash_key, new_key
from foredraft.server.console.benchmark_schemas import Benchmark
from foredraft.server.console.benchmark_store import FOLDER, MOST_REPORTS, BenchmarkStore
from foredraft.server.console.benchmarks import BenchmarkRunner
from foredraft.server.console.request_book import RequestBook
from foredraft.server.pool import ModelPool
from foredraft.server.settings import KeySettings, ServerSettings
from foredraft.server.worker import EngineWorker, Job, Ticket
from foredraft.types import Event
from http_server import Running, serving

ALICE, ADMIN = new_key(), new_key()
LOCKED = ServerSettings(
    keys=(KeySettings(name="alice", hash=hash_key(ALICE)),), admin_key_hash=hash_key(ADMIN)
)
AS_ADMIN = {"x-api-key": ADMIN}


@pytest.fixture(scope="module")
def locked() -> Iterator[Running]:
    with serving(settings=LOCKED, speculate="recycle", end=-50.0) as running:
        yield running


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounds of some milliseconds, so that there is something to cancel."""
    step = Engine.step

    def slowly(engine: Engine) -> list[Event]:
        time.sleep(0.005)
        return step(engine)

    monkeypatch.setattr(Engine, "step", slowly)


@pytest.fixture
def jobs(monkeypatch: pytest.MonkeyPatch) -> list[Job]:
    """What the engines are asked."""
    asked: list[Job] = []
    stream = EngineWorker.stream

    def noting(
        worker: EngineWorker, job: Job, ticket: Ticket | None = None
    ) -> AsyncGenerator[Sequence[Event], None]:
        asked.append(job)
        return stream(worker, job, ticket)

    monkeypatch.setattr(EngineWorker, "stream", noting)
    return asked


def call(running: Running, method: str, path: str = "", **options: Any) -> httpx.Response:
    url = f"{running.url}/console/benchmarks{path}"
    return httpx.request(method, url, **{"headers": AS_ADMIN, "timeout": 60, **options})


def start(running: Running, **body: Any) -> str:
    reply = call(running, "POST", json=body)
    assert reply.status_code == 200, reply.text
    return str(reply.json()["id"])


def ended(running: Running, report_id: str) -> dict[str, Any]:
    until(lambda: call(running, "GET", f"/{report_id}").json()["state"] != "running")
    found: dict[str, Any] = call(running, "GET", f"/{report_id}").json()
    return found


def until(found: Callable[[], Any]) -> Any:
    for _ in range(2000):
        if value := found():
            return value
        time.sleep(0.01)
    raise AssertionError("it did not come")


def test_each_prompt_is_answered_by_both_sides(locked: Running, jobs: list[Job]) -> None:
    report = ended(locked, start(locked, prompts=5, tokens=40))
    assert (report["state"], report["error"], report["model"]) == ("done", None, "fake")
    assert (report["done"], report["total"], report["disturbed"]) == (10, 10, 0)
    pairs = report["pairs"]
    assert len({pair["prompt"] for pair in pairs}) == 5
    assert len({pair["category"] for pair in pairs}) == 5, "evenly from the categories"
    for pair in pairs:
        assert pair["same"] is True
        assert pair["tokens"] == 40
        assert pair["speedup"] == pytest.approx(pair["auto"] / pair["off"])
    speedups = [pair["speedup"] for pair in pairs]
    assert min(speedups) <= report["speedup"] <= max(speedups)
    assert report["low"] < report["speedup"] < report["high"]
    assert [job.max_draft for job in jobs[2:]] == [0, None, None, 0, 0, None, None, 0, 0, None], "in turns"
    assert len({job.scope for job in jobs}) == len(jobs), "no answer is known to another"
    assert all(job.scope.startswith(UNKEPT) for job in jobs)
    assert all(job.params.temperature == 0 for job in jobs)


def test_a_second_benchmark_finds_nothing_that_the_first_one_left(locked: Running) -> None:
    reports = [ended(locked, start(locked, prompts=2, tokens=200)) for _ in range(2)]
    first, second = ([pair["acceptance"] for pair in report["pairs"]] for report in reports)
    assert any(first), "there are drafts"
    assert first == second
    body = {"prompt": "same text", "max_tokens": 200, "temperature": 0}
    answers = [
        httpx.post(f"{locked.url}/v1/completions", json=body, headers={"x-api-key": ALICE}, timeout=60).json()
        for _ in range(2)
    ]
    accepted = [answer["speculation"]["acceptance_rate"] for answer in answers]
    assert accepted[1] > accepted[0], "other scopes do remember"


@pytest.mark.usefixtures("slow")
def test_one_at_a_time_and_cancelling_it(locked: Running) -> None:
    running = start(locked, prompts=48, tokens=1024)
    second = call(locked, "POST", json={})
    assert (second.status_code, second.json()["error"]["code"]) == (409, "benchmark_running")
    until(lambda: not locked.engines["fake"].idle)
    refused = call(locked, "DELETE", f"/{running}")
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "benchmark_running")
    with ThreadPoolExecutor(4) as threads:
        path = f"/{running}/cancel"
        cancelled = list(threads.map(lambda _: call(locked, "POST", path, json={}).json(), range(4)))
    assert [each["state"] for each in cancelled] == ["cancelled"] * 4, "and its report is there"
    assert call(locked, "POST", path, json={}).json()["state"] == "cancelled"
    until(lambda: locked.engines["fake"].idle)
    listed = call(locked, "GET").json()["benchmarks"]
    assert listed[0]["id"] == running, "the newest first"
    assert call(locked, "DELETE", f"/{running}").status_code == 200, "and now it is deleted"
    assert call(locked, "GET", f"/{running}").status_code == 404
    assert call(locked, "DELETE", f"/{running}").status_code == 404
    assert ended(locked, start(locked, prompts=1, tokens=16))["state"] == "done", "another one may begin"


@pytest.mark.usefixtures("slow")
def test_other_requests_disturb_it(locked: Running) -> None:
    report_id = start(locked, prompts=3, tokens=100)
    until(lambda: call(locked, "GET", f"/{report_id}").json()["done"] >= 2)
    body = {"prompt": "x", "max_tokens": 3}
    httpx.post(f"{locked.url}/v1/completions", json=body, headers={"x-api-key": ALICE}, timeout=60)
    report = ended(locked, report_id)
    assert 1 <= report["disturbed"] <= 2
    assert sum(pair["disturbed"] for pair in report["pairs"]) == report["disturbed"]


def test_short_answers_have_no_pair() -> None:
    with serving(script="ok") as running:
        report = ended(running, start(running, prompts=2))
    assert (report["state"], report["pairs"], report["speedup"]) == ("done", [], None)


@pytest.mark.usefixtures("slow")
def test_an_unloaded_model_ends_it_with_the_reason(locked: Running) -> None:
    report_id = start(locked, prompts=8, tokens=500)
    until(lambda: call(locked, "GET", f"/{report_id}").json()["done"] >= 1)
    httpx.post(f"{locked.url}/v1/models/fake/unload", headers=AS_ADMIN, timeout=60)
    report = ended(locked, report_id)
    assert report["state"] == "failed"
    assert "unloaded" in report["error"]


@pytest.mark.parametrize(
    ("body", "param"), [({"prompts": 0}, "prompts"), ({"tokens": 5}, "tokens"), ({"token": 20}, "token")]
)
def test_wrong_values_are_named(locked: Running, body: dict[str, int], param: str) -> None:
    reply = call(locked, "POST", json=body)
    assert reply.status_code == 400
    assert reply.json()["error"]["param"] == param


def test_an_unknown_model_is_refused_and_blocks_nothing() -> None:
    with serving("one", "two") as running:
        assert call(running, "POST", json={"model": "three"}).status_code == 404
        assert ended(running, start(running, prompts=1, tokens=16, model="two"))["model"] == "two"


# --- reports that are kept -------------------------------------------------------------------------------


@pytest.mark.usefixtures("slow")
def test_reports_outlast_the_server_and_a_cut_one_has_failed(tmp_path: Path) -> None:
    settings = ServerSettings(cache_dir=tmp_path)
    with serving(settings=settings, end=-50.0) as running:
        whole = start(running, prompts=1, tokens=16)
        ended(running, whole)
        cut = start(running, prompts=48, tokens=1024)
    with serving(settings=settings) as running:
        found = {report["id"]: report for report in call(running, "GET").json()["benchmarks"]}
        assert found[whole]["state"] == "done"
        assert (found[cut]["state"], bool(found[cut]["error"])) == ("failed", True)
        call(running, "DELETE", f"/{whole}")
    assert [path.stem for path in (tmp_path / FOLDER).iterdir()] == [cut]


def report(number: int, **changes: Any) -> Benchmark:
    values = dict.fromkeys(("off", "auto", "speedup", "low", "high", "error"))
    made = Benchmark(
        id=f"{number:016x}", at=float(number), model="m", state="done", done=1, total=1, tokens=1, pairs=[],
        disturbed=0, exact=True, exact_reason="", **values,
    )  # fmt: skip
    return made.model_copy(update=changes)


def test_files_that_are_no_reports_are_left_alone_with_a_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = BenchmarkStore(tmp_path)
    assert store.load() == []
    for number in (1, 2):
        made = report(number)
        store.save(lambda made=made: made)  # type: ignore[misc]
    running = report(3, state="running")
    store.save(lambda: running)
    folder = tmp_path / FOLDER
    bad = [folder / f"{number:016x}.json" for number in (7, 8)]
    bad[0].write_text("{")
    bad[1].write_bytes(b"\xff" * 2_000_000)
    (folder / "notes.txt").write_text("mine")
    with caplog.at_level(logging.WARNING):
        found = store.load()
    assert [each.at for each in found] == [3.0, 2.0, 1.0]
    assert (found[0].state, found[0].error) == ("failed", "The server ended while it ran.")
    assert sum("is not a benchmark's report" in message for message in caplog.messages) == len(bad)
    assert all(path.exists() for path in bad)


def test_the_oldest_reports_go(tmp_path: Path) -> None:
    store = BenchmarkStore(tmp_path)
    for number in range(MOST_REPORTS + 3):
        made = report(number)
        store.save(lambda made=made: made)  # type: ignore[misc]
    with serving(settings=ServerSettings(cache_dir=tmp_path)) as running:
        newest = start(running, prompts=1, tokens=16)
        ended(running, newest)
        listed = until(
            lambda: len(rows := call(running, "GET").json()["benchmarks"]) == MOST_REPORTS and rows
        )
        assert listed[0]["id"] == newest
    assert len(list((tmp_path / FOLDER).iterdir())) == MOST_REPORTS


def test_a_folder_that_cannot_be_written_is_a_line_in_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / FOLDER).write_text("a file")
    store = BenchmarkStore(tmp_path)
    store.save(lambda: report(1))
    assert store.load() == []
    assert "was not written" in caplog.text


def test_a_stream_gets_the_reports_that_change(tmp_path: Path) -> None:
    async def follow() -> None:
        store = BenchmarkStore(tmp_path)
        for number in range(3):
            store.save(lambda number=number: report(number, at=float(number)))  # type: ignore[misc]
        runner = BenchmarkRunner(
            ModelPool(ServerSettings(), lambda _: pytest.fail("no model")), RequestBook(), store
        )
        first = await runner.news(None)
        assert first is not None
        assert (len(first.benchmarks), first.whole) == (3, True)
        assert await runner.news(first) is None
        runner._keep(report(1, at=1.0, done=1))
        second = await runner.news(first)
        assert second is not None
        assert ([one.done for one in second.benchmarks], second.whole) == ([1], False)
        assert await runner.news(second) is None
        runner._keep(report(2, at=2.0, done=1))
        await runner.delete(report(0).id)
        third = await runner.news(second)
        assert third is not None
        assert ([one.at for one in third.benchmarks], third.whole) == ([2.0, 1.0], True)
        assert await runner.news(third) is None

    asyncio.run(follow())
