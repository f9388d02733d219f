"""The `foredraft` command. One file per subcommand, imported when it is used."""

from __future__ import annotations

import errno
import io
import logging
import os
import shutil
import sys
import textwrap
import threading
from contextlib import suppress
from importlib import import_module
from importlib.metadata import version
from typing import IO, Any, NoReturn

import click

from foredraft.cli.interrupt import INTERRUPTED, TERMINATED, stop_code
from foredraft.cli.lazy_group import LazyGroup
from foredraft.errors import ForedraftError, printable

COMMANDS = {
    "run": ("foredraft.cli.run:run", "Answer one prompt."),
    "chat": ("foredraft.cli.chat:chat", "Talk with a model."),
    "models": ("foredraft.cli.models:models", "List, download and convert models."),
    "bench": ("foredraft.cli.bench:bench", "Measure the speedup of speculation on this machine."),
    "keys": ("foredraft.cli.keys:keys", "Create and remove API keys for the server."),
    "profile": ("foredraft.cli.profile:profile", "Measure the cost of forwards and of drafts."),
    "serve": ("foredraft.cli.serve:serve", "Serve models over OpenAI's and Anthropic's APIs."),
    "rpc-server": ("foredraft.cli.rpc:server", "Compute layers of models that other machines run."),
    "rpc-build": ("foredraft.cli.rpc:build", "Compile what --rpc and rpc-server need, once."),
    "draft": ("foredraft.cli.draft:draft", "Judge drafts for a model of your own, and train one."),
    "ngram": ("foredraft.cli.ngram:ngram", "Build files for the ngram-cache drafter."),
    "doctor": ("foredraft.cli.doctor:doctor", "Check this installation and a model."),
    "forget": ("foredraft.cli.forget:forget", "Erase stored data about past texts."),
    "completion": ("foredraft.cli.completion:completion", "Complete commands and models in your shell."),
}
"""Each command's import path and help line; the list of commands is printed without importing any."""

DEBUG_VARIABLE = "FOREDRAFT_DEBUG"
COMPLETE_VARIABLE = "_FOREDRAFT_COMPLETE"
"""Set by the scripts of `foredraft completion`; its name is click's."""


@click.group(cls=LazyGroup, lazy=COMMANDS, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(version("foredraft"), prog_name="foredraft")
def cli() -> None:
    """Run local language models faster: speculative decoding with nothing to tune and nothing lost."""


class _WarningsToStderr(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        if sys.stderr is not None and sys.stderr.isatty() and not _dumb():
            click.echo("\r\x1b[K", err=True, nl=False)  # clears a spinner in this line
        _tell(record.getMessage(), label="Warning: ", fg="yellow")


def main() -> None:
    """Entry point: every error is shown as one message with an exit code, never as a traceback."""
    _fill_standard_streams()
    logging.getLogger("foredraft").addHandler(_WarningsToStderr(logging.WARNING))
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A terminal or pipe that is not UTF-8 shows "?" for a character it lacks, and does not fail.
            stream.reconfigure(errors="replace")
    if COMPLETE_VARIABLE in os.environ:
        import_module("foredraft.cli.completion")  # adds to what click knows of shells
    code = _flushed(run_command(sys.argv[1:]))
    if code in (INTERRUPTED, TERMINATED) and threading.active_count() > 1:
        _leave(code)
    sys.exit(code)


def _fill_standard_streams() -> None:
    """Open /dev/null for each of the first three file descriptors that is closed. Otherwise the next file or
    socket would get its number, and the output of native libraries with it. Python has None for such a
    stream, where libraries expect an object.
    """
    while (number := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(number)
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            stream = io.TextIOWrapper(io.FileIO(os.devnull, "w"), encoding="utf-8")
            setattr(sys, name, stream)


def _flushed(code: int) -> int:
    """The exit code, once everything is written: 1 where output that should have been cannot be. Python would
    try it when it ends, complain, and end with 120.
    """
    for stream in (sys.stderr, sys.stdout):
        try:
            stream.flush()
        except OSError as error:
            _discard(stream)
            if stream is sys.stdout and code == 0:
                code = 1
                if not isinstance(error, BrokenPipeError):  # whose reader is gone
                    _complain(*_unexpected(error))
    return code


def _discard(stream: IO[str]) -> None:
    """Let what is still buffered go nowhere, and all that is written from now on."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


def _leave(code: int) -> NoReturn:
    """End without waiting for threads: one may be loading a model in native code, and would fail when the
    interpreter shuts down.
    """
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


def run_command(arguments: list[str]) -> int:
    """Run the command line and return its exit code (2: the input is wrong, 1: a failure)."""
    try:
        result = cli.main(arguments, prog_name="foredraft", standalone_mode=False)
        return result if isinstance(result, int) else 0
    except click.exceptions.Exit as leave:
        return leave.exit_code
    except click.ClickException as error:
        _show_usage(error)
        return error.exit_code
    except (click.Abort, KeyboardInterrupt) as stop:
        on_terminal = sys.stderr is not None and sys.stderr.isatty()
        _tell("\nStopped." if on_terminal else "Stopped.")  # the terminal shows ^C
        return stop_code(stop)
    except ForedraftError as error:
        _complain(error.message, error.hint)
        return error.exit_code
    except BrokenPipeError:
        # The reader of our output has exited (`foredraft run … | head`): that is no error to report.
        _discard(sys.stdout)
        return 1
    except Exception as error:
        if os.environ.get(DEBUG_VARIABLE):
            raise
        _complain(*_unexpected(error))
        return 1


def _unexpected(error: Exception) -> tuple[str, str]:
    """Message and hint for an exception that no command handles."""
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return (
            f"The disk is full: {error.strerror}.",
            "Free some space, or write to another disk. The output written so far may be incomplete.",
        )
    return (
        f"Internal error: {type(error).__name__}: {error}",
        f"This is a bug in Foredraft. Set {DEBUG_VARIABLE}=1 to see where it happened, and report it.",
    )


def _show_usage(error: click.ClickException) -> None:
    """Show click's usage error in the same form as every other error."""
    context = getattr(error, "ctx", None)
    if context is not None:
        _tell(context.get_usage())
        _tell(f"Try '{context.command_path} --help' for help.")
    _complain(error.format_message(), None)


def _complain(message: str, hint: str | None) -> None:
    _tell(message, label="Error: ", fg="red", bold=True)
    if hint:
        _tell(hint)


def _tell(text: str, *, label: str = "", **style: Any) -> None:
    """Print a line on standard error, wrapped at words on a terminal. `label` precedes it, in colour."""
    text = label + printable(text)
    if sys.stderr is not None and sys.stderr.isatty():
        text = "\n".join(map(_between_words, text.split("\n")))
    if label:
        text = coloured(label, **style) + text.removeprefix(label)
    with suppress(OSError):  # standard error may be closed; the exit code remains
        click.echo(text, err=True)


def _between_words(line: str) -> str:
    width = shutil.get_terminal_size().columns
    lines = textwrap.wrap(line, width, break_long_words=False, break_on_hyphens=False)
    return "\n".join(lines) if len(line) > width else line


def coloured(text: str, **style: Any) -> str:
    """Style the text, unless colours are turned off (no-color.org); click ignores that."""
    plain = os.environ.get("NO_COLOR") or _dumb()
    return text if plain else click.style(text, **style)


def _dumb() -> bool:
    """Whether the terminal shows control sequences instead of obeying them."""
    return os.environ.get("TERM") in ("dumb", "unknown")
