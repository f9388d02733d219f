"""`foredraft draft score`: how good a draft is for a model, and whether it pays on this machine."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.markup import escape
from rich.progress import Progress

from foredraft.bench.cost_plot import check_plot_file
from foredraft.cli.bench_bar import answers_bar
from foredraft.cli.completion import complete_models
from foredraft.cli.draft_loading import Loaded, load_pair, model_text
from foredraft.cli.draft_source import PIECES, PROMPTS, Source, take_source
from foredraft.cli.interrupt import terminable
from foredraft.cli.options import model_options, take_model_options
from foredraft.cli.render import stderr_console
from foredraft.cli.units import counted
from foredraft.cli.values import Number, Whole
from foredraft.draft.pair import try_out
from foredraft.draft.passages import LENGTH, Passage
from foredraft.draft.result import Result, as_dict, result_of
from foredraft.draft.result_plot import write_plot
from foredraft.draft.result_text import result_text
from foredraft.draft.score import Scorer
from foredraft.errors import ConfigError

PIPE_WIDTH = 100
"""Columns if there is no terminal with a width."""


@click.command()
@click.argument("model", shell_complete=complete_models)
@click.argument("draft", shell_complete=complete_models)
@click.option(
    "--text",
    metavar="FILE",
    type=click.Path(path_type=Path),
    default=None,
    help="Score on a text (UTF-8) instead of the model's own answers.",
)
@click.option(
    "--traces",
    metavar="FILE",
    type=click.Path(path_type=Path),
    default=None,
    help="Score on recorded answers of the model: a file of 'foredraft bench --record'.",
)
@click.option(
    "--prompts",
    metavar="FILE|FOLDER",
    type=click.Path(path_type=Path),
    default=None,
    show_default="the shipped ones",
    help="Prompts to answer: JSON lines with id, category and turns.",
)
@click.option(
    "--temperature",
    "--temp",
    type=Number(0),
    default=0.8,
    show_default=True,
    help="Scored beside greedy decoding; 0 is greedy alone.",
)
@click.option(
    "--tokens", "-n", type=Whole(16), default=128, show_default=True, help="Maximum tokens of an answer."
)
@click.option(
    "--limit",
    metavar="N",
    type=Whole(1),
    default=None,
    show_default=f"{PROMPTS} prompts; {PIECES} traces or passages",
    help="Number of prompts, evenly from all categories; or of traces, or of passages of a text "
    f"({LENGTH} tokens).",
)
@click.option(
    "--seed", "-s", type=Whole(), default=1, show_default=True, help="The same seed gives the same text."
)
@click.option(
    "--plot",
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    default=None,
    help="Plot the score to a .png or .svg file.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of tables.")
@model_options
@terminable()
def score(model: str, draft: str, **options: Any) -> None:
    """Score DRAFT as a draft for MODEL: how near it comes to what MODEL says, how much of it would be
    accepted, how fast that is on this machine, and whether 'auto' gains by it.

    DRAFT is a smaller model, or a trained head: a file or a name; "own" stands for MODEL's own layers for
    multi-token prediction. It is scored on MODEL's own answers to a few prompts unless a text or traces are
    given. Ctrl-C ends it with the score of what was done.
    """
    source = take_source(options)
    errors = stderr_console()
    as_json, plot = options.pop("as_json"), options.pop("plot")
    if plot is not None:
        check_plot_file(plot)
    result, stopped = _scored(model, draft, source, take_model_options(options), errors)
    if as_json:
        click.echo(json.dumps(as_dict(result), indent=2, ensure_ascii=False, allow_nan=False))
    else:
        out = Console(highlight=False)
        if not out.is_terminal:
            out = Console(file=out.file, highlight=False, width=PIPE_WIDTH)
        out.print(result_text(result))
    if plot is not None:
        write_plot(result, plot)
        errors.print(f"[dim]Plot: {escape(str(plot))}[/]", soft_wrap=True)
    if stopped is not None:
        raise stopped


def _scored(
    model: str, draft: str, source: Source, loading: dict[str, Any], errors: Console
) -> tuple[Result, KeyboardInterrupt | None]:
    """The result, and the interruption if there was one: then it is of what was scored before it."""
    with ExitStack() as stack:
        loaded = load_pair(model, draft, loading, errors, stack)
        pair, target = loaded.pair, loaded.pair.target
        source.check(target)
        scorer = Scorer(target, pair.guesses, pair.needs)
        run = _Run(scorer, loaded.room)
        with answers_bar(errors) as bar:
            stopped = run.all(source.passages(pair.answering, loaded.room), source.count, bar)
        if not scorer.passages:
            raise stopped or ConfigError(
                "There is nothing to score: no text fits into the context of both models.",
                hint="Give shorter prompts, or a larger context (--ctx) if the models support it.",
            )
        if run.left_out:
            left = counted(run.left_out, "answer")
            errors.print(f"[yellow]Note:[/] {left} left out: too long for the context.", highlight=False)
        about = _about(loaded, source, run, stopped is not None)
        trial = None
        if stopped is None:
            try:
                with errors.status("Trying how fast that is…"):
                    trial = try_out(pair, run.passages)
            except KeyboardInterrupt as pressed:
                stopped = pressed
        return result_of(target.info.name, loaded.name, about, scorer, trial), stopped


class _Run:
    """Scores passages, counting what was left out and keeping what was read."""

    def __init__(self, scorer: Scorer, room: int) -> None:
        self._scorer = scorer
        self._room = room
        self.passages: list[Passage] = []
        self.texts = 0
        self.left_out = 0

    def all(self, found: Iterator[list[Passage]], count: int, bar: Progress) -> KeyboardInterrupt | None:
        """Score everything, with progress; returns the interruption if there was one."""
        task = bar.add_task("scoring", total=count)
        try:
            for passages in found:
                fitting = [passage for passage in passages if len(passage.tokens) <= self._room]
                self.left_out += not fitting
                self.texts += bool(fitting)
                for passage in fitting:
                    self._scorer.add(passage)
                    self.passages.append(passage)
                bar.update(task, advance=1)
        except KeyboardInterrupt as pressed:
            return pressed
        return None


def _about(loaded: Loaded, source: Source, run: _Run, stopped: bool) -> dict[str, str]:
    what = counted(run.texts, source.noun)
    origin = f" of {source.origin}" if source.origin else ""
    about = {
        "model": model_text(loaded.pair.target.info),
        "draft": loaded.description,
        "scored on": what + (" (stopped early)" if stopped else "") + origin,
    }
    if source.assumed:
        about["assumed"] = source.assumed
    return about
