"""Benchmarks of auto against off, on the running server."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from foredraft.server.console.shapes import Change, Grown, Reply


class NewBenchmark(Change):
    """`prompts`: of the shipped ones, evenly from all categories. `tokens`: the most of each answer."""

    model: str | None = None
    prompts: Annotated[int, Field(ge=1, le=48)] = 8
    tokens: Annotated[int, Field(ge=16, le=1024)] = 128


class Pair(Reply):
    """One prompt, answered by both. `same`: the texts are equal. Rates: tokens a second. `disturbed`: other
    requests ran meanwhile.
    """

    prompt: str
    category: str
    off: float
    auto: float
    speedup: float
    tokens: int
    same: bool
    acceptance: float | None
    disturbed: bool


class Benchmark(Reply):
    """A benchmark. `done` of `total` answers. `off` and `auto`: tokens a second over all prompts; `low` and
    `high`: bounds of the speedup, 95 % confidence. `disturbed`: pairs during which other requests ran.
    `exact`: as of the model. `at`: Unix time of the start.
    """

    id: str
    at: float
    model: str
    state: Literal["running", "done", "failed", "cancelled"]
    done: int
    total: int
    tokens: int
    pairs: list[Pair]
    off: float | None
    auto: float | None
    speedup: float | None
    low: float | None
    high: float | None
    disturbed: int
    exact: bool
    exact_reason: str
    error: str | None


class Benchmarks(Grown):
    """The newest first. `changes`: how often one has changed since the server started."""

    benchmarks: list[Benchmark]
    changes: int
