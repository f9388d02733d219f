"""`foredraft chat`: a conversation with a model in the terminal, or over a pipe."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console

from foredraft.cli import paths
from foredraft.cli.chat_commands import COMMANDS, is_command, run_command
from foredraft.cli.chat_input import ReadLine, is_interactive, open_input
from foredraft.cli.chat_session import Conversation
from foredraft.cli.chat_turn import Chat
from foredraft.cli.completion import complete_models
from foredraft.cli.help import COMMON, OUTPUT, GroupedCommand, option
from foredraft.cli.loading import load_engine
from foredraft.cli.options import (
    lora_option,
    model_option,
    model_options,
    remember_option,
    speculation_options,
    take_lora,
    take_model,
    take_model_options,
    take_remember,
    take_speculation,
)
from foredraft.cli.render import StreamPrinter, stderr_console
from foredraft.cli.sampling import sampling_options, take_sampling
from foredraft.cli.values import Utf8
from foredraft.config import Speculation

if TYPE_CHECKING:
    from foredraft.engine.engine import Engine


@click.command(
    cls=GroupedCommand,
    examples=(
        "foredraft chat",
        'foredraft chat -m MODEL --system "You are terse."',
        "foredraft chat --temp 0 < questions.txt",
    ),
    instead={"--image": "In a chat, type /image FILE."},
)
@click.argument("model", required=False, shell_complete=complete_models)
@model_option
@option("--system", group=COMMON, type=Utf8(), default=None, metavar="TEXT", help="A system message.")
@sampling_options
@speculation_options
@model_options
@lora_option
@remember_option
@option(
    "--color/--no-color",
    group=OUTPUT,
    default=None,
    show_default="on a terminal",
    help="Colour accepted draft tokens.",
)
def chat(model: str | None, **options: Any) -> int:
    """Talk with a model.

    /help lists the commands. Ctrl-C stops an answer, Ctrl-D quits. Typed lines are kept as history in a file
    that only you can read, unless --no-remember is given. /image FILE shows an image with the next question.
    Input from a pipe is one turn a line, and the exit code is 1 if a command among them failed. The model can
    also be named without -m.
    """
    model = take_model(options, model)
    system, colour = options.pop("system"), options.pop("color")
    speculation, sampling = take_speculation(options), take_sampling(options)
    loading = {**take_model_options(options), **take_lora(options), **take_remember(options)}
    notes = stderr_console()

    def load(named: str | None, speculation: Speculation) -> Engine:
        return load_engine(named, speculation, loading, notes, chats=True)

    engine = load(model, speculation)
    printer = StreamPrinter(Console(force_terminal=colour, highlight=False))
    session = Chat(engine, Conversation(system), sampling, printer, notes, str(speculation), load, model)
    with closing(session):
        interactive = is_interactive()
        if interactive:
            _welcome(session)
            session.confirm = _confirm
        history = paths.history_file() if loading["remember"] else None
        _converse(session, open_input(history, list(COMMANDS), session.say))
    return 1 if session.failed and not interactive else 0


def _confirm(question: str) -> bool:
    """Ask at a terminal; Ctrl-D means no."""
    try:
        return click.confirm(question, err=True)
    except click.Abort:
        return False


def _welcome(session: Chat) -> None:
    session.say(session.about())
    session.say("/help lists the commands, Ctrl-D quits.")


def _converse(session: Chat, read: ReadLine) -> None:
    """Take turns until the input ends or /exit."""
    while not session.leaving:
        try:
            line = read()
        except KeyboardInterrupt:
            session.say("Ctrl-D or /exit quits.")
            continue
        except EOFError:
            return
        try:
            if is_command(line):
                run_command(session, line)
            elif line.strip():
                session.ask(line)
        except KeyboardInterrupt:
            session.say("Stopped.")
