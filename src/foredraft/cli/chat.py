"""`foredraft chat`: a conversation with a model in the terminal, or over a pipe."""

from __future__ import annotations

from typing import Any

import click
from rich.console import Console

from foredraft.cli import paths
from foredraft.cli.chat_commands import COMMANDS, is_command, run_command
from foredraft.cli.chat_input import ReadLine, is_interactive, open_input
from foredraft.cli.chat_session import Conversation
from foredraft.cli.chat_turn import Chat
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
from foredraft.cli.render import StreamPrinter, stderr_console
from foredraft.cli.values import Utf8
from foredraft.sampling.validation import validate_params


@click.command()
@click.argument("model", required=False)
@click.option("--system", type=Utf8(), default=None, help="A system message.")
@sampling_options
@speculation_options
@model_options
@remember_option
@click.option("--color/--no-color", default=None, help="Colour draft tokens (default: on a terminal).")
def chat(model: str | None, **options: Any) -> int:
    """Talk with MODEL (a path, a pulled name, or nothing for the default model).

    /help lists the commands. Ctrl-C stops an answer, Ctrl-D leaves. The lines you type are kept for the
    arrow keys, in a file that only you can read; --no-remember keeps none. From a pipe every line is a turn.
    """
    system, colour = options.pop("system"), options.pop("color")
    speculation, params = take_speculation(options), take_sampling(options)
    loading = {**take_model_options(options), **take_remember(options)}
    notes = stderr_console()
    with load_engine(model, speculation, loading, notes) as engine:
        validate_params(params, engine.model.info.vocab_size)
        printer = StreamPrinter(Console(force_terminal=colour, highlight=False))
        session = Chat(engine, Conversation(system), params, printer, notes, str(speculation))
        if is_interactive():
            _welcome(session)
        history = paths.history_file() if loading["remember"] else None
        _converse(session, open_input(history, list(COMMANDS), session.say))
    return 0


def _welcome(session: Chat) -> None:
    info, capabilities = session.engine.model.info, session.engine.model.capabilities
    parts = [
        info.name,
        info.quantization,
        f"context {info.context_length:,}",
        f"speculation {session.speculation}",
        "exact" if capabilities.batch_invariant else f"not exact: {capabilities.invariance_note}",
    ]
    session.say(" · ".join(part for part in parts if part))
    session.say("/help lists the commands, Ctrl-D leaves.")


def _converse(session: Chat, read: ReadLine) -> None:
    """Turn after turn, until the input ends or /quit."""
    while not session.leaving:
        try:
            line = read()
        except KeyboardInterrupt:
            session.say("Ctrl-D or /quit leaves.")
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
