"""The replaying part of `foredraft bench`: recorded answers, any setting, any cost curve, no model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace as dataclass_replace
from pathlib import Path

from rich.console import Console
from rich.progress import Progress, TaskID

from foredraft.bench.curves import Curve, find_curves
from foredraft.bench.replay import ReplayResult, check_replayable, replay
from foredraft.bench.replay_report import replay_report
from foredraft.bench.report import Report
from foredraft.bench.static_drafters import rank_static, shipped_traces
from foredraft.bench.trace import TraceSet, read_traces
from foredraft.cli.bench_bar import answers_bar
from foredraft.cli.units import counted
from foredraft.errors import ConfigError

SHIPPED = "shipped"
"""What --replay takes for the traces that come with Foredraft."""

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
) -> tuple[Report, KeyboardInterrupt | None]:
    """Replay every setting on every curve. `static` adds the best of all static settings on each curve;
    `trees`: the model verifies trees, which adaptive settings make use of. Also returns what stopped it
    before its end: then the report is of the replays that were finished.

    Raises ConfigError, SpeculationStringError; KeyboardInterrupt where none was.
    """
    for setting in settings:
        check_replayable(setting)
    traces = _traces(source)
    chosen = [curve for name in dict.fromkeys(curves or DEFAULT_CURVES) for curve in find_curves(name)]
    if len({curve.name for curve in chosen}) < len(chosen):
        raise ConfigError("Two cost curves have the same name.", hint="Rename a file.")
    results: list[ReplayResult] = []
    stopped: KeyboardInterrupt | None = None
    with answers_bar(errors) as progress:
        try:
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
        except KeyboardInterrupt as pressed:
            if not results:
                raise
            stopped = pressed
    report = replay_report(results, source=source, traces=traces, overhead_ms=overhead_ms)
    if stopped is not None:
        report = _incomplete(report, len(results), len(chosen) * (len(settings) + static))
    return report, stopped


def _incomplete(report: Report, done: int, wanted: int) -> Report:
    """The report of so many replays of those that were asked for, saying so."""
    note = f"stopped after {counted(done, 'replay')} of {wanted}: the report is of these"
    title = f"{report.title} (incomplete)"
    return dataclass_replace(report, title=title, notes=[*report.notes, note], complete=False)


def _traces(source: str) -> TraceSet:
    return shipped_traces() if source == SHIPPED else read_traces(Path(source))


def _best_static(curve: Curve, traces: TraceSet, progress: Progress) -> list[str]:
    task = progress.add_task(f"static settings on {curve.name}", total=None)

    def shown(done: int, total: int, _: str) -> None:
        progress.update(task, completed=done, total=total)

    best = rank_static(curve, shown, traces)[0]
    progress.remove_task(task)
    return [best.speculation]
