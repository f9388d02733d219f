"""`foredraft run`: one prompt, one answer."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.markup import escape

from foredraft.cli.compare import compare
from foredraft.cli.completion import complete_files, complete_models
from foredraft.cli.help import COMMON, OTHER, OUTPUT, SPECULATION, GroupedCommand, option
from foredraft.cli.loading import find_model, load_engine
from foredraft.cli.options import (
    lora_option,
    model_option,
    model_options,
    remember_option,
    speculation_options,
    take_lora,
    take_model_options,
    take_remember,
    take_speculation,
)
from foredraft.cli.prompting import read_prompt, read_text, split_words
from foredraft.cli.render import StreamPrinter, answer_console, closing_line, ending_note, stderr_console
from foredraft.cli.report import completion_dict
from foredraft.cli.sampling import Sampling, sampling_options, take_sampling
from foredraft.cli.thoughts import ThoughtfulPrinter, Told
from foredraft.cli.values import Utf8, Whole
from foredraft.config import Speculation
from foredraft.engine.streams import fold
from foredraft.errors import BackendError, RequestError
from foredraft.images import Image
from foredraft.pictures import read_picture
from foredraft.types import Completion, Event, Message, SamplingParams

if TYPE_CHECKING:
    from rich.console import Console

    from foredraft.engine.engine import Engine
    from foredraft.engine.prompt import Prompt


@click.command(
    cls=GroupedCommand,
    examples=(
        'foredraft run "Why is the sky blue?"',
        'foredraft run -m MODEL "Why is the sky blue?"',
        'foredraft run "Summarise this." < notes.txt',
        'git diff | foredraft run "Write a commit message for this change."',
        'foredraft run -m MODEL --image cat.png "What is this?"',
        "foredraft run --temp 0 --compare --prediction code.py -f edit.txt",
    ),
)
@click.argument("words", nargs=-1, metavar="[MODEL] [PROMPT]", shell_complete=complete_models)
@model_option
@option("--prompt", "-p", "prompt_option", group=COMMON, type=Utf8(), default=None, help="The prompt.")
@option(
    "--file",
    "-f",
    "prompt_file",
    group=COMMON,
    default=None,
    metavar="FILE",
    shell_complete=complete_files,
    help="Read the prompt from a file; - is standard input.",
)
@option(
    "--image",
    "images",
    group=COMMON,
    multiple=True,
    metavar="FILE",
    shell_complete=complete_files,
    help="Show the model an image with the prompt: PNG, JPEG, WebP, GIF or BMP. May be repeated.",
)
@option("--system", group=COMMON, type=Utf8(), default=None, metavar="TEXT", help="A system message.")
@sampling_options
@speculation_options
@option(
    "--prediction",
    group=SPECULATION,
    default=None,
    metavar="FILE",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Text that the answer is expected to repeat, such as the code to edit.",
)
@option(
    "--compare",
    group=OUTPUT,
    is_flag=True,
    help="Generate the answer again without speculation, and compare the speeds.",
)
@option("--json", "as_json", group=OUTPUT, is_flag=True, help="Print one JSON object instead of the text.")
@option(
    "--logprobs",
    group=OUTPUT,
    type=Whole(0, 20),
    default=None,
    help="With --json: the tokens' log-probabilities and those of N alternatives.",
)
@option(
    "--color/--no-color",
    group=OUTPUT,
    default=None,
    show_default="on a terminal",
    help="Colour accepted draft tokens.",
)
@option(
    "--show-thinking/--no-show-thinking",
    group=OUTPUT,
    default=None,
    show_default="on a terminal",
    help="Show what the model thinks before it answers.",
)
@option(
    "--record",
    group=OUTPUT,
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    default=None,
    help="Add the answer to a trace file for 'foredraft bench --replay'. The file contains your text.",
)
@option(
    "--raw",
    group=OTHER,
    is_flag=True,
    help="Pass the prompt to the model unchanged, without a chat template.",
)
@model_options
@lora_option
@remember_option
def run(words: tuple[str, ...], **options: Any) -> int:  # fmt: skip
    """Answer one PROMPT: an argument in quotes, -p, -f, or piped text.

    Piped text comes before a prompt that is also given, separated by an empty line. The answer goes to
    standard output, its statistics to standard error; what the model thinks first is dimmed on a terminal and
    left out of a pipe. MODEL may also be the first argument, without -m.
    """
    asked = _take(words, options)
    params_of, loading = (
        asked.sampling.params,
        {**take_model_options(options), **take_lora(options), **take_remember(options)},
    )
    errors = stderr_console()
    with load_engine(
        asked.model, asked.speculation, loading, errors, chats=not asked.raw, images=asked.images
    ) as engine:
        params = params_of(engine.model.info.recommended)
        if asked.compare and params.seed is None:
            params = replace(params, seed=secrets.randbits(32))
        if asked.record is not None:
            _check_record(asked.record)
        told = Told(engine, asked.prompt)
        completion = _answer(engine, asked, params, told, errors)
        if asked.record is not None and not completion.error:
            _record(engine, asked.prompt, completion, asked.prediction, asked.record)
        compared = None
        if asked.compare and not completion.error:
            compared = compare(engine, asked.prompt, params, completion, errors)
        if asked.as_json:
            value = completion_dict(completion, told.thought, told.text) | (
                {"compared": compared.as_dict()} if compared else {}
            )
            click.echo(json.dumps(value, ensure_ascii=False))
        elif compared is not None:
            compared.show(errors)
    if completion.error:
        raise BackendError(f"Generation failed: {completion.error}")
    return 0


@dataclass(frozen=True, slots=True)
class _Asked:
    """The command line's values, without the options of loading."""

    model: str | None
    prompt: Prompt
    images: bool
    prediction: str
    raw: bool
    speculation: Speculation
    sampling: Sampling
    as_json: bool
    colour: bool | None
    thoughts: bool | None
    record: Path | None
    compare: bool


def _take(words: tuple[str, ...], options: dict[str, Any]) -> _Asked:
    """Pop the options that are not about loading, and read the prompt. Raises ForedraftError."""
    prompt_option, prompt_file = options.pop("prompt_option"), options.pop("prompt_file")
    model, word = split_words(
        words, model=options.pop("named"), prompt_given=bool(prompt_option or prompt_file)
    )
    if model is not None and model in words:
        find_model(model)  # before a prompt is found missing or waited for: `run notes.txt`
    images = options.pop("images")
    raw, expected, logprobs = options.pop("raw"), options.pop("prediction"), options.pop("logprobs")
    asked = _Asked(
        model=model,
        prompt=_prompt(
            read_prompt(word, prompt_option, prompt_file),
            raw=raw,
            system=options.pop("system"),
            images=[read_picture(path) for path in images],
        ),
        images=bool(images),
        prediction=read_text(expected, "prediction file") if expected else "",
        raw=raw,
        speculation=take_speculation(options),
        sampling=take_sampling(options, logprobs=logprobs),
        as_json=options.pop("as_json"),
        colour=options.pop("color"),
        thoughts=options.pop("show_thinking"),
        record=options.pop("record"),
        compare=options.pop("compare"),
    )
    if logprobs is not None and not asked.as_json:
        raise RequestError("--logprobs needs --json.", hint="Add --json: the object contains them.")
    if asked.compare and asked.speculation.off:
        raise RequestError("--compare needs speculation, which is off.", hint="Remove --speculate off.")
    return asked


def _answer(engine: Engine, asked: _Asked, params: SamplingParams, told: Told, errors: Console) -> Completion:
    if not asked.as_json:
        return _stream(engine, asked, params, told, errors)

    def read() -> Iterator[Event]:
        for event in engine.stream(asked.prompt, params, prediction=asked.prediction):
            list(told.read(event))
            yield event

    return fold(read())


def _check_record(path: Path) -> None:
    """Raises ConfigError if the trace file cannot be written, before anything is generated."""
    from foredraft.bench.report_files import check_file

    check_file(path)


def _record(engine: Engine, prompt: Prompt, completion: Completion, prediction: str, path: Path) -> None:
    from foredraft.bench.record import as_trace, trace_set
    from foredraft.cli.bench_record import add_traces

    expected = engine.model.tokenizer.encode(prediction) if prediction else ()
    name = datetime.now().astimezone().isoformat(timespec="seconds")
    trace = as_trace(engine.encode(prompt), completion, name=name, category="run", prediction=expected)
    add_traces(path, trace_set(engine, [trace]))


def _prompt(text: str, *, raw: bool, system: str | None, images: Sequence[Image]) -> Prompt:
    if raw and images:
        raise RequestError(
            "--image needs a chat template, which --raw leaves out.", hint="Remove one of the two."
        )
    if raw:
        return text if system is None else system + text
    messages: list[Message] = [{"role": "system", "content": system}] if system is not None else []
    shown = [{"type": "image", "image": image} for image in images]
    content = [*shown, {"type": "text", "text": text}] if shown else text
    return [*messages, {"role": "user", "content": content}]


def _stream(
    engine: Engine,
    asked: _Asked,
    params: SamplingParams,
    told: Told,
    errors: Console,
) -> Completion:
    out = answer_console(colour=asked.colour)
    printer = StreamPrinter(out)
    thoughts = out.file.isatty() if asked.thoughts is None else asked.thoughts
    writer = ThoughtfulPrinter(printer, told, thoughts=thoughts)

    def shown() -> Iterator[Event]:
        for event in engine.stream(asked.prompt, params, prediction=asked.prediction):
            writer.write(event)
            yield event

    completion = fold(shown())
    printer.end()
    legend = printer.legend()
    if legend:
        errors.print(legend)
    line = closing_line(completion, gain=not asked.compare, without=engine.model.info.without)
    errors.print(
        f"[dim]{escape(line)}[/]",
        soft_wrap=not errors.is_terminal,
    )
    note = ending_note(completion, engine.model.info.context_length)
    if note:
        errors.print(escape(note), soft_wrap=not errors.is_terminal)
    return completion
