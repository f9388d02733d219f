"""The recording part of `foredraft bench`: answers of plain decoding, written as traces."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.markup import escape

from foredraft.bench.record import append_traces, as_trace, trace_set
from foredraft.bench.report_files import check_file
from foredraft.bench.trace import Trace, TraceSet
from foredraft.cli.bench_bar import answers_bar
from foredraft.cli.bench_live import Plan, load_plan_engines
from foredraft.cli.interrupt import HeldCtrlC
from foredraft.config import OFF
from foredraft.engine.engine import Engine
from foredraft.errors import ConfigError, ContextLengthError


def add_traces(path: Path, traces: TraceSet) -> None:
    """Add traces to a file. Raises ConfigError if it cannot be written, and what `append_traces` raises."""
    try:
        append_traces(path, traces)
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror or error}.") from error


def record_answers(plan: Plan, path: Path, console: Console) -> tuple[int, KeyboardInterrupt | None]:
    """Answer all prompts of a plan and add the traces to a file; returns their number, and the interruption
    if there was one: then the finished answers are written. Raises ForedraftError; KeyboardInterrupt before
    the first.
    """
    check_file(path)
    traces: list[Trace] = []
    stopped: KeyboardInterrupt | None = None
    with load_plan_engines(plan, [OFF], console)[OFF] as engine:
        try:
            _answer(plan, engine, traces, console)
        except KeyboardInterrupt as pressed:
            if not traces:
                raise
            stopped = pressed
        finally:
            if traces:
                stopped = _written(path, engine, traces) or stopped
    return len(traces), stopped


def _answer(plan: Plan, engine: Engine, traces: list[Trace], console: Console) -> None:
    """Add traces as they are recorded, with a progress bar."""
    with answers_bar(console) as bar:
        task = bar.add_task("recording", total=len(plan.cases))
        for case in plan.cases:
            bar.update(task, description=escape(case.id))
            prompt = engine.encode([{"role": "user", "content": case.turns[0]}])
            try:
                completion = engine.generate(prompt, plan.params)
            except ContextLengthError as error:
                console.print(f"Left out {case.id}: {error.message}", highlight=False, markup=False)
                continue
            traces.append(as_trace(prompt, completion, name=case.id, category=case.category))
            bar.update(task, advance=1)


def _written(path: Path, engine: Engine, traces: list[Trace]) -> KeyboardInterrupt | None:
    """Add the traces to the file; returns an interruption that came meanwhile. Raises ConfigError."""
    try:
        with HeldCtrlC():
            add_traces(path, trace_set(engine, traces))
    except KeyboardInterrupt as pressed:
        return pressed
    return None
