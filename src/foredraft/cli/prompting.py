"""Input of `run`: which argument is the model and which the prompt, and reading the prompt."""

from __future__ import annotations

import sys
import threading
from collections.abc import Sequence
from io import StringIO
from pathlib import Path

import click

from foredraft.cli.values import is_utf8
from foredraft.errors import ModelNotFoundError, RequestError

TRY = 'Try: foredraft run "Why is the sky blue?"'
NOTHING_PIPED = "Add '< /dev/null' if nothing is piped in."

JOINT = "\n\n"
"""Between piped text and the prompt."""

MOST_BYTES = 8 << 20
"""Maximum size of a prompt: about two million tokens."""

PATIENCE_S = 3.0
"""Seconds of waiting for a pipe before a message about it."""


def split_words(
    words: Sequence[str], *, model: str | None, prompt_given: bool
) -> tuple[str | None, str | None]:
    """Split the arguments of `run` into (model, prompt): `[MODEL] [PROMPT]`, both optional.

    A single argument is the model if it names one, or if the prompt is given otherwise and the argument does
    not look like a second prompt; otherwise it is the prompt. Raises RequestError for more arguments.
    """
    words = list(words)
    first_of_two = len(words) > 1
    if model is None and words and (first_of_two or _is_model(words[0], prompt_given=prompt_given)):
        model = words.pop(0)
    if len(words) > 1:
        raise RequestError(
            f"Too many arguments: {' '.join(words)}.",
            hint='Put the prompt in quotes: foredraft run "…".',
        )
    return model, words[0] if words else None


def names_a_model(word: str) -> bool:
    """Whether a single argument names a model: a GGUF path, or the name of a model."""
    if word.lower().endswith(".gguf"):
        return True
    if not _is_one_word(word):
        return False
    from foredraft.cli.paths import locate

    try:
        locate(word)
    except (ModelNotFoundError, OSError, RuntimeError):
        # OSError: too long for a file name, like a prompt without spaces. RuntimeError: "~word" for an
        # unknown user.
        return False
    return True


def _is_model(word: str, *, prompt_given: bool) -> bool:
    if names_a_model(word):
        return True
    try:
        return prompt_given and (_is_one_word(word) or Path(word).exists())
    except (OSError, ValueError):  # too long for a file name
        return False


def _is_one_word(word: str) -> bool:
    return not any(letter.isspace() for letter in word)


def read_prompt(argument: str | None, option: str | None, file: str | None) -> str:
    """Read the prompt from an argument, -p or a file ("-" is standard input), preceded by piped text and an
    empty line.

    Raises RequestError if there is no prompt, more than one, or it cannot be read.
    """
    named = None if file in (None, "-") else file
    if sum(source is not None for source in (argument, option, named)) > 1:
        raise RequestError(
            "The prompt is given more than once.",
            hint="Use only one of an argument, -p and -f. Text that belongs before it can be piped in: "
            'foredraft run "…" < FILE',
        )
    asked = argument if argument is not None else option
    if named is not None:
        asked = _read_file(Path(named))
    elif asked is not None and not asked.strip():
        raise RequestError("The prompt is empty.", hint=TRY)
    piped = _read_piped(needed=asked is None, wanted=file == "-")
    text = JOINT.join(part for part in (piped, asked) if part)
    if not text.strip():
        raise RequestError("The prompt is empty.", hint=TRY)
    if not is_utf8(text):  # the argument, which may also have been a file's name
        raise RequestError(
            "The prompt is not UTF-8 text.", hint="Convert it to UTF-8, or name a file with -f."
        )
    return text


def _read_piped(*, needed: bool, wanted: bool) -> str:
    """Read piped text. At a terminal nothing is read unless `wanted`. `needed`: it is the whole prompt."""
    if sys.stdin is None and (needed or wanted):
        raise RequestError("There is no prompt, and standard input is closed.", hint=TRY)
    if typed_at() and not wanted:
        if needed:
            raise RequestError("There is no prompt.", hint=TRY)
        return ""
    text = "" if sys.stdin is None else _read_stdin()
    return text if needed else text.strip("\n")


def typed_at() -> bool:
    """Whether standard input is a terminal. It is None if the program was started without one (`<&-`)."""
    return sys.stdin is not None and sys.stdin.isatty()


def _read_stdin() -> str:
    """Read bytes: in a plain C locale Python's text stream would pass invalid bytes on to the model."""
    source = getattr(sys.stdin, "buffer", None)
    waiting = threading.Timer(PATIENCE_S, _say_waiting)
    waiting.daemon = True
    waiting.start()
    try:
        data = sys.stdin.read(MOST_BYTES + 1).encode() if source is None else source.read(MOST_BYTES + 1)
    except OSError as error:
        raise RequestError(
            f"Cannot read standard input: {error.strerror or error}.", hint=NOTHING_PIPED
        ) from None
    finally:
        waiting.cancel()
    return _as_text(data, "The piped input", hint="Convert it to UTF-8, or name a file with -f.")


def _say_waiting() -> None:
    click.echo(f"Waiting for the end of the piped input. {NOTHING_PIPED}", err=True)


def _as_text(data: bytes, what: str, *, hint: str | None = None) -> str:
    """Decode UTF-8 without a byte order mark, with Python's line ends. Raises RequestError."""
    if len(data) > MOST_BYTES:
        raise RequestError(
            f"{what} is larger than {MOST_BYTES >> 20} MiB, too much for any model.",
            hint="Use only the part that matters.",
        )
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:
        raise RequestError(f"{what} is not UTF-8 text.", hint=hint)
    return StringIO(text, newline=None).read()


def read_text(path: Path, what: str) -> str:
    """Read a text file. Raises RequestError if it cannot be read; `what` names it there ("prompt file")."""
    try:
        with path.open("rb") as file:
            data = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise RequestError(f"Cannot read the {what} {path}: {error.strerror}.") from None
    except ValueError:  # a NUL in the file name
        raise RequestError(f"The {what} cannot have this name.", hint="Name a text file.") from None
    return _as_text(data, f"The {what} {path}")


def _read_file(path: Path) -> str:
    text = read_text(path, "prompt file")
    if not text.strip():
        raise RequestError(f"The prompt file {path} is empty.")
    return text
