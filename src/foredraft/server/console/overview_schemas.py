"""Figures of the server over a window of time."""

from __future__ import annotations

from typing import Literal

from foredraft.server.console.shapes import Grown, Reply

Window = Literal["2m", "1h", "24h", "all"]


class Point(Reply):
    """One step of a series, which ends at the Unix time `at`. None: nothing was measured in it.

    Rates are over the step, of all models. `running` and `waiting`: the most at once. `speedup`: time that
    plain rounds would have taken ÷ time taken. `cpu`: share of all cores, 0 to 1, of the whole machine.
    `memory_bytes`: resident memory of this process. `gpu`: share of the busiest GPU, 0 to 1.
    """

    at: float
    tokens_per_s: float
    prompt_tokens_per_s: float
    first_token_ms: float | None
    inter_token_p50_ms: float | None
    inter_token_p99_ms: float | None
    running: int
    waiting: int
    speedup: float | None
    cpu: float | None
    memory_bytes: int | None
    gpu: float | None
    gpu_memory_bytes: int | None


class Spread(Reply):
    """Median and 99th percentile in milliseconds; None: nothing was measured."""

    p50: float | None
    p99: float | None


class DrafterTotals(Reply):
    """What a drafter did: drafts verified, tokens drafted and accepted, time spent on drafting."""

    drafts: int
    drafted: int
    accepted: int
    ms: float


class Totals(Reply):
    """Sums over the window. `failed`: requests that ended with an error. `accepted_by_depth[d]`: draft tokens
    accepted at depth d; divided by `drafts` it is the share of drafts with more than d right tokens.
    """

    requests: int
    failed: int
    prompt_tokens: int
    cached_tokens: int
    generated_tokens: int
    rounds: int
    drafts: int
    speedup: float | None
    first_token_ms: Spread
    inter_token_ms: Spread
    drafters: dict[str, DrafterTotals]
    accepted_by_depth: list[int]


class Overview(Grown):
    """A window: `points` every `step_s` seconds, the oldest first, and `totals`. `since`: Unix time of the
    first figure there is, also from earlier runs of the server. `kept`: whether figures survive a restart;
    if not, `not_kept` says why. Only of the points there may be a part.
    """

    window: Window
    step_s: float
    since: float
    points: list[Point]
    totals: Totals
    memory_total_bytes: int | None
    gpu_memory_total_bytes: int | None
    kept: bool
    not_kept: str | None
