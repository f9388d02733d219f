"""`foredraft draft score`: how good a draft is for a model, and whether it pays on this machine."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.markup import escape
from rich.progress import Progress

from foredraft.bench.cost_plot import check_plot_file
from foredraft.bench.trace import TraceSet, read_traces
from foredraft.bench.workloads import PromptCase, load_prompts, select
from foredraft.cli.bench_bar import answers_bar
from foredraft.cli.completion import complete_models
from foredraft.cli.interrupt import terminable
from foredraft.cli.loading import find_model, load_engines
from foredraft.cli.ngram import read_pieces
from foredraft.cli.options import model_options, take_model_options
from foredraft.cli.render import stderr_console
from foredraft.cli.units import counted
from foredraft.cli.values import Number, Whole
from foredraft.config import AUTO, OFF, parse_speculation
from foredraft.draft.passages import LENGTH, Passage
from foredraft.draft.reading import ModelGuesses
from foredraft.draft.result import Result, as_dict, result_of
from foredraft.draft.result_plot import write_plot
from foredraft.draft.result_text import result_text
from foredraft.draft.score import Scorer
from foredraft.draft.sources import TOGETHER, answers, check_length, recorded, written
from foredraft.engine.engine import Engine
from foredraft.errors import ConfigError, UnsupportedModelError
from foredraft.planner import AutoPlanner
from foredraft.protocols import Model
from foredraft.types import Rollback

PIPE_WIDTH = 100
"""Columns if there is no terminal with a width."""

PROMPTS = 12
"""Prompts that are answered if `--limit` does not say how many."""

PIECES = 24
"""Recorded answers, or passages of a text, that are scored if `--limit` does not say how many."""


@dataclass(frozen=True, slots=True)
class Source:
    """What to score on: the text or the traces in a file, or answers to `cases`."""

    temperatures: tuple[float, ...]
    limit: int
    tokens: int
    seed: int
    text: str = ""
    traces: TraceSet | None = None
    cases: tuple[PromptCase, ...] = ()
    origin: str = ""

    @property
    def count(self) -> int:
        """Steps of progress, about."""
        if self.text:
            pieces = min(self.limit, 1 + len(self.text) // (3 * LENGTH))
        else:
            pieces = len(self.cases) if self.traces is None else min(self.limit, len(self.traces.traces))
        return pieces * len(self.temperatures)

    def passages(self, engine: Engine, room: int) -> Iterator[list[Passage]]:
        """The passages, a few at a time; at most `room` tokens each."""
        if self.traces is not None:
            return recorded(self.traces, self.temperatures, seed=self.seed, room=room, limit=self.limit)
        if self.text:
            tokens = engine.encode(self.text)
            check_length(tokens)
            return written(tokens, self.temperatures, seed=self.seed, room=room, limit=self.limit)
        return answers(engine, self.cases, self.temperatures, tokens=self.tokens, seed=self.seed)


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
    accepted, how fast that would be on this machine, and whether 'auto' would use it.

    DRAFT is a smaller model: a file or a name. It is scored on MODEL's own answers to a few prompts unless a
    text or traces are given. Ctrl-C ends it with the score of what was done.
    """
    source = _source(options)
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


def _source(options: dict[str, Any]) -> Source:
    """Pop what it is scored on, read before a model is loaded. Raises ConfigError."""
    text, traces, prompts = (options.pop(name) for name in ("text", "traces", "prompts"))
    given = [flag for flag, path in (("--text", text), ("--traces", traces), ("--prompts", prompts)) if path]
    if len(given) > 1:
        raise ConfigError(f"{given[0]} and {given[1]} exclude each other.", hint="Leave one of them out.")
    temperature, limit = options.pop("temperature"), options.pop("limit")
    temperatures = (0.0,) if temperature == 0 else (0.0, temperature)
    tokens, seed = options.pop("tokens"), options.pop("seed")
    if text is not None:
        content = "".join(_pieces(text, (limit or PIECES) + 4))
        if not content.strip():
            raise ConfigError(f"{text} is empty.", hint="Give a text file with some pages.")
        return Source(temperatures, limit or PIECES, tokens, seed, text=content, origin=str(text))
    if traces is not None:
        found = read_traces(traces)
        if not any(trace.output for trace in found.traces):
            raise ConfigError(
                f"There are no answers in {traces}.", hint="Record some: foredraft bench --record"
            )
        return Source(temperatures, limit or PIECES, tokens, seed, traces=found, origin=str(traces))
    cases = select(load_prompts(prompts), limit=limit or PROMPTS)
    return Source(temperatures, len(cases), tokens, seed, cases=tuple(cases), origin=str(prompts or ""))


def _pieces(path: Path, count: int) -> Iterator[str]:
    """As much of a text as so many pieces can need: a token has 16 letters at most on average."""
    if not path.exists():
        raise ConfigError(f"There is no file {path}.")
    if not path.is_file():
        raise ConfigError(f"{path} is not a file.", hint="Name a text file.")
    left = 16 * LENGTH * count
    for piece in read_pieces(path):
        yield piece[:left]
        left -= len(piece)
        if left <= 0:
            return


def _scored(
    model: str, draft: str, source: Source, loading: dict[str, Any], errors: Console
) -> tuple[Result, KeyboardInterrupt | None]:
    """The result, and the interruption if there was one: then it is of what was scored before it."""
    path, draft_path = find_model(model), find_model(draft)
    with ExitStack() as stack:
        settings = [parse_speculation(AUTO), parse_speculation(OFF)]
        options = loading | {"sequences": TOGETHER, "remember": False}
        answering, reading = load_engines(path, settings, options, errors)
        stack.enter_context(answering)
        stack.enter_context(reading)
        target = reading.model
        options = loading | {"probe": False, "remember": False, "context_length": 0}
        [drafting] = load_engines(draft_path, [parse_speculation(OFF)], options, errors)
        stack.enter_context(drafting)
        _check(target, drafting.model, source)
        scorer = Scorer(target, ModelGuesses(drafting.model))
        room = min(target.info.context_length, drafting.model.info.context_length)
        run = _Run(scorer, room)
        with answers_bar(errors) as bar:
            stopped = run.all(source.passages(answering, room), source.count, bar)
        if not scorer.passages:
            raise stopped or ConfigError(
                "There is nothing to score: no text fits into the context of both models.",
                hint="Give shorter prompts, or a larger context (--ctx) if the models support it.",
            )
        if run.left_out:
            left = counted(run.left_out, "answer")
            errors.print(f"[yellow]Note:[/] {left} left out: too long for the context.", highlight=False)
        assert isinstance(answering.planner, AutoPlanner), "auto has one"
        curve = answering.planner.cost
        curve.focus(run.tokens // scorer.passages, 1)
        about = _about(target, drafting.model, source, run, stopped is not None)
        return result_of(target.info.name, drafting.model.info.name, about, scorer, curve), stopped


def _check(target: Model, draft: Model, source: Source) -> None:
    """Raises UnsupportedModelError, ConfigError for what cannot be compared."""
    if draft.info.vocab_hash != target.info.vocab_hash:
        raise UnsupportedModelError(
            f"{draft.info.name} has another vocabulary than {target.info.name}: their distributions are of "
            "other tokens, and cannot be compared.",
            hint="It can draft all the same, by translation. How fast is that? foredraft bench -m MODEL "
            "--speculate 'auto;draft-model:model=DRAFT'",
        )
    if draft.capabilities.rollback is not Rollback.TRUNCATE:
        raise UnsupportedModelError(
            f"{draft.info.name} cannot draft: rejected tokens cannot be removed from its cache.",
            hint="Use a draft model with attention layers only.",
        )
    if source.traces is not None and source.traces.vocab_hash != target.info.vocab_hash:
        raise ConfigError(
            f"{source.origin} holds traces of {source.traces.model}, which has other tokens than "
            f"{target.info.name}.",
            hint="Record answers of this model: foredraft bench --record FILE",
        )


class _Run:
    """Scores passages, counting what was left out and read."""

    def __init__(self, scorer: Scorer, room: int) -> None:
        self._scorer = scorer
        self._room = room
        self.tokens = 0
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
                    self.tokens += len(passage.tokens)
                bar.update(task, advance=1)
        except KeyboardInterrupt as pressed:
            return pressed
        return None


def _about(target: Model, draft: Model, source: Source, run: _Run, stopped: bool) -> dict[str, str]:
    kind = "recorded answer" if source.traces else "passage" if source.text else "answer"
    what = counted(run.texts, kind)
    origin = f" of {source.origin}" if source.origin else ""
    return {
        "model": _model_text(target),
        "draft": _model_text(draft),
        "scored on": what + (" (stopped early)" if stopped else "") + origin,
    }


def _model_text(model: Model) -> str:
    info = model.info
    return f"{info.name}, {info.quantization or 'unknown quantization'}"
