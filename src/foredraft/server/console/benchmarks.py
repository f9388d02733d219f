"""Benchmarks of auto against off on the running server: /console/benchmarks."""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import aclosing
from secrets import token_hex
from typing import Annotated

from fastapi import APIRouter, Depends

from foredraft.bench.workloads import PromptCase, select, shipped_prompts
from foredraft.engine.engine import Engine
from foredraft.errors import ForedraftError
from foredraft.server.auth import Caller
from foredraft.server.caller import generating
from foredraft.server.console.access import admin_of, reader_of
from foredraft.server.console.benchmark_run import DRAFTED, measure
from foredraft.server.console.benchmark_schemas import Benchmark, Benchmarks, NewBenchmark
from foredraft.server.console.benchmark_store import MOST_REPORTS, BenchmarkStore
from foredraft.server.console.events import Topic
from foredraft.server.console.parts import Parts
from foredraft.server.console.request_book import RequestBook
from foredraft.server.console.shapes import Reply
from foredraft.server.pool import Lease, ModelPool
from foredraft.server.strict_json import strict_router

logger = logging.getLogger(__name__)


class BenchmarkRunningError(ForedraftError):
    """A benchmark runs: another would be measured with it, and its report is not whole yet."""

    code = "benchmark_running"
    status = 409


class BenchmarkNotFoundError(ForedraftError):
    """There is no benchmark of this id."""

    code = "benchmark_not_found"
    status = 404


class BenchmarkRunner:
    """Runs one benchmark at a time and keeps the last `MOST_REPORTS`, the newest first. Used by one event
    loop.
    """

    def __init__(self, pool: ModelPool, book: RequestBook, store: BenchmarkStore) -> None:
        self._pool = pool
        self._book = book
        self._store = store
        self._reports: dict[str, Benchmark] | None = None
        self._changes = self._removed = 0
        self._changed: dict[str, int] = {}
        self._loading = asyncio.Lock()
        self._running: str | None = None
        self._task: asyncio.Task[None] | None = None
        self._cancelled = False

    async def reports(self) -> dict[str, Benchmark]:
        """All reports by id, read from the disk when they are first asked for."""
        async with self._loading:
            if self._reports is None:
                found = await asyncio.to_thread(self._store.load)
                self._reports = {report.id: report for report in found}
        return self._reports

    async def newest_first(self, since: int | None = None) -> Benchmarks:
        """The reports, the newest first. `since`: without those that have not changed since `changes` was
        that.
        """
        reports = (await self.reports()).values()
        found = [one for one in reports if since is None or self._changed.get(one.id, 0) > since]
        return Benchmarks(
            benchmarks=sorted(found, key=lambda each: each.at, reverse=True),
            changes=self._changes,
            whole=since is None,
        )

    async def news(self, sent: Benchmarks | None) -> Benchmarks | None:
        """What has changed since `sent`: all of it if there is none, or if one was deleted. None: nothing."""
        if sent is None or sent.changes < self._removed:
            return await self.newest_first()
        return await self.newest_first(sent.changes) if sent.changes != self._changes else None

    async def find(self, report_id: str) -> Benchmark:
        """Raises BenchmarkNotFoundError."""
        report = (await self.reports()).get(report_id)
        if report is None:
            raise BenchmarkNotFoundError(f"There is no benchmark {report_id[:100]!r}.")
        return report

    async def start(self, new: NewBenchmark) -> Benchmark:
        """Begin a benchmark. Raises BenchmarkRunningError, and what loading the model raises."""
        await self.reports()
        if self._running is not None:
            raise BenchmarkRunningError(
                "A benchmark is running.", hint="Wait until it is done, or cancel it."
            )
        report_id = self._running = token_hex(8)
        try:
            lease = self._pool.leased(generating(await self._pool.get(new.model)), new.model)
            exact, why = await lease.model.worker.call(_exactness)
        except BaseException:
            self._running = None
            raise
        cases = select(shipped_prompts(), limit=new.prompts)
        report = Benchmark(
            id=report_id,
            at=time.time(),
            model=lease.name,
            state="running",
            done=0,
            total=len(DRAFTED) * len(cases),
            tokens=new.tokens,
            pairs=[],
            off=None,
            auto=None,
            speedup=None,
            low=None,
            high=None,
            disturbed=0,
            exact=exact,
            exact_reason=why,
            error=None,
        )
        self._keep(report)
        self._cancelled = False
        self._task = asyncio.create_task(self._run(lease, cases, report))
        return report

    async def cancel(self, report_id: str) -> Benchmark:
        """End a benchmark, which stays as a report; one that has ended stays as it is. Raises
        BenchmarkNotFoundError.
        """
        await self.find(report_id)
        if report_id == self._running and self._task is not None:
            if not self._cancelled:  # a second time would end the saving of the first
                self._cancelled = True
                self._task.cancel()
            await asyncio.wait([self._task])
        return await self.find(report_id)

    async def delete(self, report_id: str) -> Benchmark:
        """Delete a benchmark that has ended. Raises BenchmarkNotFoundError, BenchmarkRunningError."""
        report = await self.find(report_id)
        if report_id == self._running:
            raise BenchmarkRunningError("This benchmark is running.", hint="Cancel it first.")
        if (await self.reports()).pop(report_id, None) is not None:
            self._changed.pop(report_id, None)
            self._changes += 1
            self._removed = self._changes
        await asyncio.to_thread(self._store.remove, report)
        return report

    async def _run(self, lease: Lease, cases: list[PromptCase], report: Benchmark) -> None:
        end: dict[str, str | None] = {"state": "failed", "error": "The server ended while it ran."}
        try:
            await self._save(report.id)
            with lease.model.hold():
                async with aclosing(measure(lease, cases, report, self._book, self._keep)) as found:
                    async for pair in found:
                        self._keep(pair)
                        await self._save(report.id)
            end = {"state": "done", "error": None}
        except asyncio.CancelledError:
            if not self._cancelled:
                raise
            end = {"state": "cancelled", "error": None}
        except ForedraftError as error:
            end["error"] = error.message
        except Exception:
            logger.exception("A benchmark failed.")
            end["error"] = "It failed for a reason that the server's log has."
        finally:
            reports = await self.reports()
            self._keep(reports[report.id].model_copy(update=end))
            self._running = None
            await self._save(report.id)
            await self._forget_the_oldest()

    def _keep(self, report: Benchmark) -> None:
        assert self._reports is not None
        self._reports[report.id] = report
        self._changes += 1
        self._changed[report.id] = self._changes

    async def _save(self, report_id: str) -> None:
        await asyncio.to_thread(self._store.save, lambda: (self._reports or {}).get(report_id))

    async def _forget_the_oldest(self) -> None:
        for report in (await self.newest_first()).benchmarks[MOST_REPORTS:]:
            await self.delete(report.id)


def _exactness(engine: Engine) -> tuple[bool, str]:
    capabilities = engine.model.capabilities
    return capabilities.batch_invariant, capabilities.invariance_note


def benchmark_runner(pool: ModelPool, parts: Parts) -> BenchmarkRunner:
    """The runner of a server, whose reports are in the server's cache folder."""
    return BenchmarkRunner(pool, parts.requests, BenchmarkStore(pool.settings.cache_dir))


def benchmarks_topic(runner: BenchmarkRunner) -> Topic:
    """The reports, and then those that change."""

    async def read(_caller: Caller, sent: Reply | None) -> Benchmarks | None:
        return await runner.news(sent if isinstance(sent, Benchmarks) else None)

    return Topic("benchmarks", 0.5, read)


def benchmarks_router(runner: BenchmarkRunner) -> APIRouter:
    """The routes."""
    router = strict_router()

    @router.post("/console/benchmarks")
    async def start(
        body: NewBenchmark,
        caller: Annotated[Caller, Depends(admin_of)],  # noqa: ARG001
    ) -> Benchmark:
        return await runner.start(body)

    @router.get("/console/benchmarks")
    async def benchmarks(caller: Annotated[Caller, Depends(reader_of)]) -> Benchmarks:  # noqa: ARG001
        return await runner.newest_first()

    @router.get("/console/benchmarks/{benchmark_id}")
    async def benchmark(
        benchmark_id: str,
        caller: Annotated[Caller, Depends(reader_of)],  # noqa: ARG001
    ) -> Benchmark:
        return await runner.find(benchmark_id)

    @router.post("/console/benchmarks/{benchmark_id}/cancel")
    async def cancel(
        benchmark_id: str,
        caller: Annotated[Caller, Depends(admin_of)],  # noqa: ARG001
    ) -> Benchmark:
        return await runner.cancel(benchmark_id)

    @router.delete("/console/benchmarks/{benchmark_id}")
    async def delete(
        benchmark_id: str,
        caller: Annotated[Caller, Depends(admin_of)],  # noqa: ARG001
    ) -> Benchmark:
        return await runner.delete(benchmark_id)

    return router
