"""The replay part of `foredraft bench`: recorded answers through `auto`, on any cost curve, no model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace as dataclass_replace
from pathlib import Path

from rich.console import Console
from rich.progress import TaskID

from foredraft.bench.curves import find_curves
from foredraft.bench.replay import ReplayResult, replay
from foredraft.bench.replay_report import replay_report
from foredraft.bench.report import Report
from foredraft.bench.trace import TraceSet, read_traces, shipped_traces
from foredraft.cli.bench_bar import answers_bar
from foredraft.cli.units import counted
from foredraft.errors import ConfigError

SHIPPED = "shipped"
"""The value of --replay for the shipped traces."""

DEFAULT_CURVES = ("steep", "flat", "gpu")


def run_replay(
    source: str, curves: Sequence[str], errors: Console
) -> tuple[Report, KeyboardInterrupt | None]:
    """Replay the traces on every curve. Also returns the interruption if there was one: then the report
    covers the finished replays.

    Raises ConfigError; KeyboardInterrupt if none was finished.
    """
    traces = _traces(source)
    chosen = [curve for name in dict.fromkeys(curves or DEFAULT_CURVES) for curve in find_curves(name)]
    if len({curve.name for curve in chosen}) < len(chosen):
        raise ConfigError("Two cost curves have the same name.", hint="Rename a file.")
    results: list[ReplayResult] = []
    stopped: KeyboardInterrupt | None = None
    with answers_bar(errors) as progress:
        try:
            for curve in chosen:
                task = progress.add_task(curve.name, total=len(traces.traces))

                def shown(done: int, total: int, _: str, task: TaskID = task) -> None:
                    progress.update(task, completed=done, total=total)

                results.append(replay(traces, curve, progress=shown))
                progress.remove_task(task)
        except KeyboardInterrupt as pressed:
            if not results:
                raise
            stopped = pressed
    report = replay_report(results, source=source, traces=traces)
    if stopped is not None:
        report = _incomplete(report, len(results), len(chosen))
    return report, stopped


def _incomplete(report: Report, done: int, wanted: int) -> Report:
    """The report of `done` of `wanted` replays, marked as incomplete."""
    note = f"stopped after {counted(done, 'replay')} of {wanted}: the report covers only these"
    title = f"{report.title} (incomplete)"
    return dataclass_replace(report, title=title, notes=[*report.notes, note], complete=False)


def _traces(source: str) -> TraceSet:
    return shipped_traces() if source == SHIPPED else read_traces(Path(source))
