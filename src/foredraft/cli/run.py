"""`foredraft run`: one prompt, one answer."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.markup import escape

from foredraft.cli.loading import load_engine
from foredraft.cli.options import (
    model_options,
    remember_option,
    sampling_options,
    speculation_options,
    take_model_options,
    take_remember,
    take_sampling,
    take_speculation,
)
from foredraft.cli.prompting import read_prompt, read_text, split_words
from foredraft.cli.render import StreamPrinter, answer_console, closing_line, stderr_console
from foredraft.cli.report import completion_dict
from foredraft.cli.values import Utf8
from foredraft.engine.fold import fold
from foredraft.errors import BackendError, RequestError
from foredraft.types import Completion, Event, SamplingParams, TokenEvent

if TYPE_CHECKING:
    from rich.console import Console

    from foredraft.engine.engine import Engine
    from foredraft.engine.prompt import Prompt


@click.command()
@click.argument("words", nargs=-1, metavar="[MODEL] [PROMPT]")
@click.option("--model", "-m", default=None, help="A GGUF file or the name of a pulled model.")
@click.option("--prompt", "-p", "prompt_option", type=Utf8(), default=None, help="The prompt.")
@click.option(
    "--file",
    "-f",
    "prompt_file",
    default=None,
    metavar="FILE",
    help="Read the prompt from a file; - is standard input.",
)
@click.option("--system", type=Utf8(), default=None, help="A system message.")
@click.option("--raw", is_flag=True, help="Give the prompt to the model as it is, without a chat template.")
@click.option(
    "--prediction",
    default=None,
    metavar="FILE",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Text that the answer is expected to repeat, e.g. the code to be edited.",
)
@sampling_options
@speculation_options
@model_options
@remember_option
@click.option(
    "--logprobs",
    type=click.IntRange(0, 20),
    default=None,
    metavar="N",
    help="With --json: log-probabilities of the tokens and of N alternatives.",
)
@click.option(
    "--record",
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    default=None,
    help="Add the answer to a file of traces, for 'foredraft bench --replay'. It holds your text.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of the text.")
@click.option("--color/--no-color", default=None, help="Colour draft tokens (default: on a terminal).")
def run(words: tuple[str, ...], **options: Any) -> int:
    """Answer one PROMPT with MODEL (a path, a pulled name, or nothing for the default model).

    The prompt may also come from -p, -f or standard input. The answer goes to standard output, a closing
    line with what it took to standard error.
    """
    prompt_option, prompt_file = options.pop("prompt_option"), options.pop("prompt_file")
    model, word = split_words(
        words, model=options.pop("model"), prompt_given=bool(prompt_option or prompt_file)
    )
    text = read_prompt(word, prompt_option, prompt_file)
    prompt = _prompt(text, raw=options.pop("raw"), system=options.pop("system"))
    expected = options.pop("prediction")
    prediction = read_text(expected, "prediction file") if expected else ""
    as_json, colour = options.pop("as_json"), options.pop("color")
    speculation = take_speculation(options)
    logprobs = options.pop("logprobs")
    if logprobs is not None and not as_json:
        raise RequestError("--logprobs has no place to go.", hint="Add --json, whose object holds them.")
    params = take_sampling(options, logprobs=logprobs)
    record = options.pop("record")
    if record is not None:
        params = _recording(params, record)
    loading = {**take_model_options(options), **take_remember(options)}
    errors = stderr_console()
    with load_engine(model, speculation, loading, errors) as engine:
        if as_json:
            completion = engine.generate(prompt, params, prediction=prediction)
            click.echo(json.dumps(completion_dict(completion), ensure_ascii=False))
        else:
            completion = _stream(engine, prompt, params, prediction=prediction, colour=colour, errors=errors)
        if record is not None and not completion.error:
            _record(engine, prompt, completion, prediction, record)
    if completion.error:
        raise BackendError(f"Generation failed: {completion.error}")
    return 0


def _recording(params: SamplingParams, path: Path) -> SamplingParams:
    """Sampling that says what a trace holds besides the text. Raises ConfigError if the file cannot be
    written, before the answer is waited for.
    """
    from foredraft.bench.record import recording
    from foredraft.bench.report_files import check_file

    check_file(path)
    return recording(params)


def _record(engine: Engine, prompt: Prompt, completion: Completion, prediction: str, path: Path) -> None:
    from foredraft.bench.record import as_trace, trace_set
    from foredraft.cli.bench_record import add_traces

    expected = engine.model.tokenizer.encode(prediction) if prediction else ()
    name = datetime.now().astimezone().isoformat(timespec="seconds")
    trace = as_trace(engine.encode(prompt), completion, name=name, category="run", prediction=expected)
    add_traces(path, trace_set(engine, [trace]))


def _prompt(text: str, *, raw: bool, system: str | None) -> Prompt:
    if raw:
        return text if system is None else system + text
    messages = [{"role": "system", "content": system}] if system is not None else []
    return [*messages, {"role": "user", "content": text}]


def _stream(
    engine: Engine,
    prompt: Prompt,
    params: SamplingParams,
    *,
    prediction: str,
    colour: bool | None,
    errors: Console,
) -> Completion:
    out = answer_console(colour=colour)
    printer = StreamPrinter(out)

    def shown() -> Iterator[Event]:
        for event in engine.stream(prompt, params, prediction=prediction):
            if isinstance(event, TokenEvent):
                printer.write(event.text, event.origin)
            else:
                printer.write(event.text)
            yield event

    completion = fold(shown())
    printer.end()
    legend = printer.legend()
    if legend:
        errors.print(legend)
    errors.print(f"[dim]{escape(closing_line(completion))}[/]", soft_wrap=True)
    return completion
