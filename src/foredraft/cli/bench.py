"""`foredraft bench`: measure the speedup of speculation on this machine."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource
from rich.console import Console

from foredraft.bench.plots import check_plotting
from foredraft.bench.report import Report
from foredraft.bench.report_files import WRITERS, check_file, write_report
from foredraft.bench.report_text import report_text
from foredraft.bench.workloads import load_prompts, select
from foredraft.cli.bench_live import Plan, run_live
from foredraft.cli.bench_record import record_answers
from foredraft.cli.bench_replay import DEFAULT_CURVES, run_replay
from foredraft.cli.completion import complete_models
from foredraft.cli.interrupt import terminable
from foredraft.cli.options import (
    MODEL_OPTIONS,
    lora_option,
    model_option,
    model_options,
    take_lora,
    take_model,
    take_model_options,
)
from foredraft.cli.render import stderr_console
from foredraft.cli.units import counted
from foredraft.cli.values import Number, Whole
from foredraft.config import AUTO
from foredraft.errors import ConfigError
from foredraft.types import SamplingParams

PIPE_WIDTH = 160
"""Columns if there is no terminal with a width."""

STDOUT = "-"

REPLAYING = {"replayed", "curves", *WRITERS}
RECORDING = {
    *("named", "record", "prompts", "categories", "limit", "tokens", "temperature", "seed", "remember"),
    *MODEL_OPTIONS,
}
"""Parameters that can be used with --replay and --record."""

REASONS = {
    "--replay": ", which replays complete traces through auto, without a model",
    "--record": ", which records plain answers to first turns, once",
}


@click.command()
@click.argument("model", required=False, shell_complete=complete_models)
@model_option
@click.option(
    "--speculate",
    "settings",
    metavar="SPEC",
    multiple=True,
    show_default=AUTO,
    help="A speculation string to compare with off. Repeatable.",
)
@click.option(
    "--prompts",
    "prompts",
    metavar="FILE|FOLDER",
    type=click.Path(path_type=Path),
    default=None,
    show_default="the shipped ones",
    help="A file of JSON lines with id, category and turns, or a folder of such files.",
)
@click.option(
    "--category",
    "categories",
    metavar="NAME",
    multiple=True,
    show_default="all",
    help="Only use prompts of this category. Repeatable.",
)
@click.option(
    "--limit",
    metavar="N",
    type=Whole(1),
    default=None,
    show_default="all",
    help="Number of prompts, evenly from all categories.",
)
@click.option(
    "--turns",
    metavar="N",
    type=Whole(1),
    default=1,
    show_default=True,
    help="Number of turns of each conversation to measure.",
)
@click.option(
    "--tokens",
    "--max-tokens",
    "-n",
    "tokens",
    type=Whole(1),
    default=256,
    show_default=True,
    help="Maximum tokens of an answer.",
)
@click.option("--temperature", "--temp", type=Number(0), default=0.0, show_default=True, help="0 is greedy.")
@click.option(
    "--seed", "-s", type=Whole(), default=1, show_default=True, help="The same seed gives the same text."
)
@click.option(
    "--repeat",
    metavar="K",
    type=Whole(1),
    default=2,
    show_default=True,
    help="Passes over the prompts, more over short and slow answers: rates of the fastest, median speedups.",
)
@click.option(
    "--replay",
    "replayed",
    metavar="TRACES",
    help="Replay recorded answers through auto in virtual time, without a model: a file of --record, or "
    "'shipped'.",
)
@click.option(
    "--curve",
    "curves",
    metavar="NAME|FILE",
    multiple=True,
    show_default=", ".join(DEFAULT_CURVES),
    help="Cost curve V(n)/V(1) to replay on, with the cost of attempts: a shipped one, or a JSON "
    "file. Repeatable.",
)
@click.option(
    "--record",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Write the answers of plain decoding as traces for --replay, instead of a benchmark.",
)
@click.option("--json", "json", metavar="FILE", help="Write all measurements as JSON; - is standard output.")
@click.option("--csv", "csv", metavar="FILE", help="Write one line per answer as CSV.")
@click.option("--html", "html", metavar="FILE", help="Write a self-contained page with tables and plots.")
@click.option("--plot", "plot", metavar="FILE", help="Write only the plot, as SVG.")
@click.option(
    "--remember",
    is_flag=True,
    help="Use the store of past outputs. Off by default, because a stored answer is not a speedup.",
)
@model_options
@lora_option
@terminable()
def bench(model: str | None, **options: Any) -> int:
    """Measure the speedup of speculation with MODEL: auto against off, in one run.

    Every prompt is answered by plain decoding (off) and by auto, or the settings of --speculate, alternately.
    The exit code is 1 if tokens differ from those of off although the model is exact. Ctrl-C or SIGTERM ends
    it with a report of the finished prompts.
    """
    if options["replayed"] is not None:
        refuse_others("--replay", REPLAYING)
    elif options["record"] is not None:
        refuse_others("--record", RECORDING)
    model = take_model(options, model)
    outputs = take_outputs(options)
    errors = stderr_console()
    replayed, curves, record = (options.pop(name) for name in ("replayed", "curves", "record"))
    if replayed is not None:
        return _replay(model, replayed, curves, outputs, errors)
    if curves:
        raise ConfigError("--curve needs --replay.")
    if record is not None:
        return _record(model, record, options, errors)
    plan = _plan(model, options.pop("settings"), options)
    report, stopped = run_live(plan, errors)
    show(report, outputs, errors)
    if stopped is not None:
        raise stopped
    return 1 if report.broken else 0


def refuse_others(flag: str, understood: Iterable[str]) -> None:
    """Refuse options that have no effect with `flag`: if they were ignored, the result would be misleading.
    `understood`: names of parameters that do have an effect. Raises ConfigError.
    """
    context = click.get_current_context()
    for parameter in context.command.params:
        name = parameter.name or ""
        given = context.get_parameter_source(name) is ParameterSource.COMMANDLINE
        if given and name not in understood and isinstance(parameter, click.Option):
            why = REASONS.get(flag, "")
            raise ConfigError(f"{parameter.opts[0]} has no effect with {flag}{why}.", hint="Remove it.")


def _replay(
    model: str | None,
    source: str,
    curves: Sequence[str],
    outputs: Mapping[str, str],
    errors: Console,
) -> int:
    if model is not None:
        raise ConfigError(f"--replay does not use a model, but {model} was given.", hint="Remove it.")
    report, stopped = run_replay(source, curves, errors)
    show(report, outputs, errors)
    if stopped is not None:
        raise stopped
    return 0


def _record(model: str | None, path: Path, options: dict[str, Any], errors: Console) -> int:
    plan = _plan(model, (), options)
    count, stopped = record_answers(plan, path, errors)
    of = f" of {len(plan.cases)}" if count < len(plan.cases) else ""
    errors.print(f"Wrote {counted(count, 'answer')}{of} to {path}", highlight=False, soft_wrap=True)
    if stopped is not None:
        raise stopped
    return 0


def _plan(model: str | None, settings: tuple[str, ...], options: dict[str, Any]) -> Plan:
    path = options.pop("prompts")
    found = load_prompts(path)
    cases = select(found, categories=options.pop("categories"), limit=options.pop("limit") or 0)
    origin = f" of {path}" if path else ""
    return Plan(
        model=model,
        settings=settings or (AUTO,),
        cases=cases,
        source=f"{counted(len(cases), 'prompt')}{origin}, {_turns(options['turns'])}",
        turns=options.pop("turns"),
        params=SamplingParams(
            max_tokens=options.pop("tokens"), temperature=options.pop("temperature"), seed=options.pop("seed")
        ),
        repeat=options.pop("repeat"),
        loading={**take_model_options(options), **take_lora(options), "remember": options.pop("remember")},
    )


def _turns(turns: int) -> str:
    return "first turn" if turns == 1 else f"first {turns} turns"


def take_outputs(options: dict[str, Any]) -> dict[str, str]:
    """Pop the files to write, by kind; checked beforehand, because measuring may take hours.

    Raises ConfigError, MissingDependencyError.
    """
    outputs = {kind: value for kind in WRITERS if (value := options.pop(kind)) is not None}
    if list(outputs.values()).count(STDOUT) > 1:
        raise ConfigError("Only one report can go to standard output.", hint="Name a file for the others.")
    if "html" in outputs or "plot" in outputs:
        check_plotting()
    if Path(outputs.get("plot", ".svg")).suffix not in (".svg", "") and outputs["plot"] != STDOUT:
        raise ConfigError("Plots are written as SVG.", hint="Use a file name that ends in .svg.")
    for value in outputs.values():
        if value != STDOUT:
            check_file(Path(value))
    return outputs


def show(report: Report, outputs: Mapping[str, str], errors: Console) -> None:
    """Print the tables and write the files. If "-" is one of them, nothing else goes to standard output.

    Raises ConfigError for files that cannot be written, after writing the others.
    """
    console = errors if STDOUT in outputs.values() else Console(highlight=False)
    if not console.is_terminal:
        console = Console(file=console.file, highlight=False, width=PIPE_WIDTH)
    console.print(report_text(report))
    failed: list[ConfigError] = []
    for kind, value in outputs.items():
        if value == STDOUT:
            click.echo(WRITERS[kind](report), nl=False)
            continue
        try:
            write_report(report, kind, Path(value))
        except ConfigError as error:
            failed.append(error)
            continue
        errors.print(f"[dim]Wrote {value}[/]", highlight=False, soft_wrap=True)
    if failed:
        raise ConfigError(" ".join(error.message for error in failed), hint=failed[0].hint)
