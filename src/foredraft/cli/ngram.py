"""`foredraft ngram`: build files for the `ngram-cache` drafter."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import click
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from foredraft.cli.loading import load_engine
from foredraft.cli.options import llama_library_option
from foredraft.cli.render import stderr_console
from foredraft.cli.units import counted, size_text
from foredraft.config import Speculation
from foredraft.drafters.ngram_cache_file import STATIC_N, build_static
from foredraft.errors import ConfigError
from foredraft.protocols import Tokenizer

PIECE_BYTES = 1 << 18
"""Size of the pieces in which text is tokenised, cut at line ends: a corpus need not fit in memory."""

CONTEXT = 64
"""Context length of the model that is loaded only for its tokenizer, in tokens."""


@click.group()
def ngram() -> None:
    """Build files for the ngram-cache drafter."""


@ngram.command("build-static")
@click.argument("texts", nargs=-1, required=True, metavar="TEXT_FILE...", type=click.Path(path_type=Path))
@click.option(
    "--output",
    "-o",
    required=True,
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="The file to write.",
)
@click.option(
    "--model",
    "-m",
    default=None,
    help="The model whose tokenizer to use: a GGUF file or the name of a model.",
)
@click.option("--force", is_flag=True, help="Overwrite FILE if it exists.")
@llama_library_option
def build_static_command(
    texts: Sequence[Path], *, output: Path, model: str | None, force: bool, llama_library: Path | None
) -> None:
    """Count n-grams in TEXT_FILEs (UTF-8), for drafting similar texts.

    The file fits every model with the same tokenizer. Use it with --speculate 'ngram-cache:static=FILE' or,
    as in llama.cpp, --spec-type ngram-cache -lcs FILE.
    """
    _check_output(output, texts, force=force)
    sizes = [_check_text(path) for path in texts]
    errors = stderr_console()
    options: dict[str, Any] = {"context_length": CONTEXT, "threads": 1, "probe": False, "remember": False}
    options["llama_library"] = llama_library
    with load_engine(model, Speculation(adaptive=False), options, errors) as engine:
        bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TaskProgressColumn(),
            TimeRemainingColumn(),
            console=errors,
            transient=True,
            disable=not errors.is_terminal,
        )
        with bar:
            task = bar.add_task("counting", total=sum(sizes))
            counter = _Counter(engine.model.tokenizer, lambda size: bar.advance(task, size))
            pairs = _build(counter.streams(texts), output, engine.model.info.vocab_hash)
    seen = f"{counter.tokens:,} tokens of {counted(len(texts), 'text')}"
    click.echo(f"{output}: {counted(pairs, 'pair')} from {seen}, {size_text(output.stat().st_size)}")
    click.echo(f"Use it: foredraft run --speculate 'ngram-cache:static={output}'", err=True)


def _build(streams: Iterator[list[int]], output: Path, vocab_hash: str) -> int:
    """Write the counts. Looks for the first stream with a pair beforehand: nothing is written for texts
    without one.
    """
    first = next((stream for stream in streams if len(stream) > STATIC_N), None)
    if first is None:
        raise ConfigError("The texts are too short to count n-grams.", hint="Give longer texts.")
    return build_static(chain([first], streams), output, vocab_hash)


class _Counter:
    """Tokenises texts and counts tokens; `advance` is called with every piece's size in bytes."""

    def __init__(self, tokenizer: Tokenizer, advance: Callable[[int], None]) -> None:
        self._tokenizer = tokenizer
        self._advance = advance
        self.tokens = 0

    def streams(self, texts: Sequence[Path]) -> Iterator[list[int]]:
        """The tokens of every piece of every text."""
        for path in texts:
            for piece in read_pieces(path):
                tokens = self._tokenizer.encode(piece)
                self.tokens += len(tokens)
                self._advance(len(piece.encode()))
                yield tokens


def read_pieces(path: Path) -> Iterator[str]:
    """Read a text in pieces of PIECE_BYTES or a little more, each up to the end of a line.

    A longer line is one piece. Raises ConfigError for a file that cannot be read or is not UTF-8 text.
    """
    try:
        with path.open("rb") as file:
            while lines := file.readlines(PIECE_BYTES):
                data = b"".join(lines)
                if b"\0" in data:
                    raise _not_text(path)
                yield data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise _not_text(path) from None
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}.") from error


def _not_text(path: Path) -> ConfigError:
    return ConfigError(f"{path} is not UTF-8 text.", hint="Give plain text files, converted to UTF-8.")


def _check_text(path: Path) -> int:
    """Check the text and return its size in bytes, before time is spent on loading a model."""
    if not path.exists():
        raise ConfigError(f"There is no file {path}.")
    if not path.is_file():
        raise ConfigError(f"{path} is not a file.", hint="Name text files.")
    first = next(read_pieces(path), "")
    size = path.stat().st_size
    if not first.strip() and size <= PIECE_BYTES:
        raise ConfigError(f"{path} is empty.", hint="Leave it out.")
    return size


def _check_output(output: Path, texts: Sequence[Path], *, force: bool) -> None:
    if output.is_dir():
        raise ConfigError(f"{output} is a folder.", hint="Name the file to write with -o.")
    if output.exists() and not output.is_file():  # a device or a pipe, which a file would replace
        raise ConfigError(f"{output} is not a regular file.", hint="Name the file to write with -o.")
    if output.exists() and any(text.exists() and output.samefile(text) for text in texts):
        raise ConfigError(f"{output} is one of the texts.", hint="Write to another file.")
    if output.exists() and not force:
        raise ConfigError(f"{output} exists already.", hint="Overwrite it with --force.")
