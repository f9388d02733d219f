"""What the words of `run` mean: which is the model, which the prompt, and where a prompt may come from."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from io import StringIO
from pathlib import Path

from foredraft.cli.values import is_utf8
from foredraft.errors import ModelNotFoundError, RequestError
from foredraft.library import models_dir, resolve

TRY = 'Try: foredraft run "Why is the sky blue?"'


def split_words(
    words: Sequence[str], *, model: str | None, prompt_given: bool
) -> tuple[str | None, str | None]:
    """(model, prompt) from the words after `run`: `[MODEL] [PROMPT]`, either alone.

    Alone, a word is the model if it names one, or if the prompt is given otherwise and this does not look
    like a second one; otherwise the prompt. Raises RequestError for more words than that.
    """
    words = list(words)
    first_of_two = len(words) > 1
    if model is None and words and (first_of_two or _is_model(words[0], prompt_given=prompt_given)):
        model = words.pop(0)
    if len(words) > 1:
        raise RequestError(
            f"Too many words: {' '.join(map(repr, words))}.",
            hint='Put the prompt in quotes: foredraft run "…".',
        )
    return model, words[0] if words else None


def names_a_model(word: str) -> bool:
    """Whether a single word is a model rather than a prompt: a GGUF path, or the name of a pulled model."""
    if word.lower().endswith(".gguf"):
        return True
    if not _is_one_word(word):
        return False
    from foredraft.cli.paths import cache_dir

    try:
        resolve(word, models_dir(cache_dir()))
    except (ModelNotFoundError, OSError, RuntimeError):
        # OSError: too long for a file's name, as a prompt in a script without spaces may be. RuntimeError:
        # "~word" where no user is called that.
        return False
    return True


def _is_model(word: str, *, prompt_given: bool) -> bool:
    if names_a_model(word):
        return True
    try:
        return prompt_given and (_is_one_word(word) or Path(word).exists())
    except (OSError, ValueError):  # too long for a file's name
        return False


def _is_one_word(word: str) -> bool:
    return not any(letter.isspace() for letter in word)


def read_prompt(argument: str | None, option: str | None, file: str | None) -> str:
    """The prompt: an argument, -p, a file ("-" is standard input), or what is piped in.

    Raises RequestError if there is none, more than one, or it cannot be read.
    """
    given = [source for source in (argument, option, file) if source is not None]
    if len(given) > 1:
        raise RequestError(
            "The prompt is given more than once.", hint="Use an argument, -p or -f, not several."
        )
    if file is not None and file != "-":
        return _read_file(Path(file))
    if argument is not None or option is not None:
        text = argument if argument is not None else option
    elif file == "-" or not typed_at():
        text = _read_stdin()
    else:
        raise RequestError("There is no prompt.", hint=TRY)
    if not text or not text.strip():
        raise RequestError("The prompt is empty.", hint=TRY)
    if not is_utf8(text):  # the argument, which may also have been a file's name
        raise RequestError("The prompt is not UTF-8 text.", hint="Convert it, or name a text file with -f.")
    return text


def typed_at() -> bool:
    """Whether standard input is a terminal. It is None where the program was started without one (`<&-`)."""
    return sys.stdin is not None and sys.stdin.isatty()


def _read_stdin() -> str:
    """Strictly: in a plain C locale Python lets bytes through that are no text, and the model sees noise."""
    if sys.stdin is None:
        raise RequestError("There is no prompt, and standard input is closed.", hint=TRY)
    source = getattr(sys.stdin, "buffer", None)
    try:
        text = sys.stdin.read() if source is None else source.read().decode("utf-8-sig")
    except UnicodeDecodeError:
        raise RequestError(
            "What was piped in is not UTF-8 text.", hint="Convert it, or name a text file with -f."
        ) from None
    return StringIO(text, newline=None).read()  # line ends as in a file


def read_text(path: Path, what: str) -> str:
    """A text file. Raises RequestError if it cannot be read, calling it `what` ("prompt file")."""
    try:
        return path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise RequestError(f"Cannot read the {what} {path}: {error.strerror}.") from None
    except UnicodeDecodeError:
        raise RequestError(f"The {what} {path} is not UTF-8 text.") from None


def _read_file(path: Path) -> str:
    text = read_text(path, "prompt file")
    if not text.strip():
        raise RequestError(f"The prompt file {path} is empty.")
    return text
