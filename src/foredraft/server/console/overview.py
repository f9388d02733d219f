"""GET /console/overview: figures over a window of time; and the topic of the last two minutes."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from typing import Annotated

from fastapi import APIRouter, Depends

from foredraft.server.auth import Caller
from foredraft.server.console.access import reader_of
from foredraft.server.console.figure_store import LEVELS, merged
from foredraft.server.console.figures import Figures, Spans
from foredraft.server.console.history import SHORTEST_TICK_S, History, Step
from foredraft.server.console.overview_schemas import DrafterTotals, Overview, Point, Spread, Totals, Window
from foredraft.server.console.parts import Parts
from foredraft.server.console.shapes import Reply
from foredraft.server.pool import ModelPool
from foredraft.server.strict_json import strict_router

MOST_POINTS = 200

HOUR, DAY = 3600, 86400


def overview_router(pool: ModelPool, parts: Parts) -> APIRouter:  # noqa: ARG001 - as all of them
    """The route."""
    router = strict_router()

    @router.get("/console/overview")
    async def overview(caller: Annotated[Caller, Depends(reader_of)], window: Window = "2m") -> Overview:  # noqa: ARG001
        return overview_of(parts.history, window)

    return router


class LiveOverview:
    """The topic: the last two minutes, of which only the points are sent that a stream has not got."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._known: Overview | None = None
        self._at: float | None = None

    async def read(self, _caller: Caller, sent: Reply | None) -> Reply | None:
        """The overview of this second, made once for all streams."""
        at = self._history.last_at
        if self._known is None or at != self._at:
            self._known, self._at = overview_of(self._history, "2m"), at
        points = self._known.points
        if not isinstance(sent, Overview) or not sent.points or not points:
            return self._known
        last = sent.points[-1].at
        if points[-1].at < last:  # the clock was set back
            return self._known
        new = [point for point in points if point.at > last]
        return self._known.model_copy(update={"points": new, "whole": False}) if new else None


def overview_of(history: History, window: Window) -> Overview:
    """The figures of a window."""
    step_s, steps = _steps(history, window)
    return Overview(
        window=window,
        step_s=step_s,
        since=history.since,
        points=[_point(step) for step in steps],
        totals=_totals(merged(step.figures for step in steps)),
        memory_total_bytes=history.memory_total,
        gpu_memory_total_bytes=history.gpu_total,
        kept=history.not_kept is None,
        not_kept=history.not_kept,
    )


def _steps(history: History, window: Window) -> tuple[float, Sequence[Step]]:
    """(seconds of a step, the steps); of everything the finest that are at most `MOST_POINTS`."""
    if window == "2m":
        return 1, history.live()
    if window == "1h":
        return 30, history.steps(30, HOUR)
    if window == "24h":
        return 600, history.steps(600, DAY)
    age = max(history.clock() - history.since, 0)
    for step, keep in LEVELS[:-1]:
        if age < step * min(keep, MOST_POINTS) - step:
            return step, history.steps(step, None)
    together = ceil((age + 2 * DAY) / DAY / MOST_POINTS)
    return DAY * together, history.steps(DAY, None, together)


def _point(step: Step) -> Point:
    figures = step.figures
    # Of several servers the seconds add up.
    seconds = max(min(figures.seconds, step.step), SHORTEST_TICK_S)
    return Point(
        at=round(step.at, 3),
        tokens_per_s=round(figures.generated / seconds, 4),
        prompt_tokens_per_s=round(figures.read / seconds, 4),
        first_token_ms=figures.first.percentile_ms(0.5),
        inter_token_p50_ms=figures.gaps.percentile_ms(0.5),
        inter_token_p99_ms=figures.gaps.percentile_ms(0.99),
        running=figures.running,
        waiting=figures.waiting,
        speedup=_speedup(figures),
        cpu=_mean(figures.cpu, figures.cpu_s),
        memory_bytes=figures.memory or None,
        gpu=_mean(figures.gpu, figures.gpu_s),
        gpu_memory_bytes=figures.gpu_memory if figures.gpu_s else None,
    )


def _totals(whole: Figures) -> Totals:
    drafters = {
        name: DrafterTotals(drafts=int(drafts), drafted=int(drafted), accepted=int(accepted), ms=round(ms, 3))
        for name, (drafts, drafted, accepted, ms) in sorted(whole.drafters.items())
    }
    return Totals(
        requests=whole.requests,
        failed=whole.failed,
        prompt_tokens=whole.prompt,
        cached_tokens=whole.cached,
        generated_tokens=whole.generated,
        rounds=whole.rounds,
        drafts=sum(each.drafts for each in drafters.values()),
        speedup=_speedup(whole),
        first_token_ms=_spread(whole.first),
        inter_token_ms=_spread(whole.gaps),
        drafters=drafters,
        accepted_by_depth=whole.depth,
    )


def _spread(spans: Spans) -> Spread:
    return Spread(p50=spans.percentile_ms(0.5), p99=spans.percentile_ms(0.99))


def _speedup(figures: Figures) -> float | None:
    return round(figures.plain_ms / figures.spent_ms, 3) if figures.spent_ms else None


def _mean(total: float, seconds: float) -> float | None:
    return round(min(total / seconds, 1.0), 4) if seconds else None
