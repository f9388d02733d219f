"""The replaying part of `foretoken bench`: recorded answers, any setting, any cost curve, no model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import Progress, TaskID

from foretoken.bench.curves import Curve, find_curves
from foretoken.bench.replay import ReplayResult, check_replayable, replay
from foretoken.bench.replay_report import replay_report
from foretoken.bench.report import Report
from foretoken.bench.static_drafters import rank_static, shipped_traces
from foretoken.bench.trace import TraceSet, read_traces
from foretoken.cli.bench_bar import answers_bar
from foretoken.errors import ConfigError

SHIPPED = "shipped"
"""What --replay takes for the traces that come with Foretoken."""

DEFAULT_CURVES = ("steep", "flat", "gpu")


def run_replay(
    source: str,
    curves: Sequence[str],
    settings: Sequence[str],
    *,
    static: bool,
    trees: bool,
    overhead_ms: float,
    errors: Console,
) -> Report:
    """Replay every setting on every curve. `static` adds the best of all static settings on each curve;
    `trees`: the model verifies trees, which adaptive settings make use of.

    Raises ConfigError, SpeculationStringError.
    """
    for setting in settings:
        check_replayable(setting)
    traces = _traces(source)
    chosen = [curve for name in dict.fromkeys(curves or DEFAULT_CURVES) for curve in find_curves(name)]
    if len({curve.name for curve in chosen}) < len(chosen):
        raise ConfigError("Two cost curves have the same name.", hint="Rename a file.")
    results: list[ReplayResult] = []
    with answers_bar(errors) as progress:
        for curve in chosen:
            wanted = [*settings, *(_best_static(curve, traces, progress) if static else ())]
            for setting in wanted:
                task = progress.add_task(f"{setting} on {curve.name}", total=len(traces.traces))

                def shown(done: int, total: int, _: str, task: TaskID = task) -> None:
                    progress.update(task, completed=done, total=total)

                results.append(
                    replay(traces, curve, setting, overhead_ms=overhead_ms, trees=trees, progress=shown)
                )
                progress.remove_task(task)
    return replay_report(results, source=source, traces=traces, overhead_ms=overhead_ms)


def _traces(source: str) -> TraceSet:
    return shipped_traces() if source == SHIPPED else read_traces(Path(source))


def _best_static(curve: Curve, traces: TraceSet, progress: Progress) -> list[str]:
    task = progress.add_task(f"static settings on {curve.name}", total=None)

    def shown(done: int, total: int, _: str) -> None:
        progress.update(task, completed=done, total=total)

    best = rank_static(curve, shown, traces)[0]
    progress.remove_task(task)
    return [best.speculation]
