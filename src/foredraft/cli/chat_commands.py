"""The slash commands of `foredraft chat`, in one table that `/help` also prints."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

import click
from rich.markup import escape
from rich.table import Table

from foredraft.cli.chat_session import overwrites
from foredraft.cli.chat_turn import Chat
from foredraft.cli.loading import check_drafts
from foredraft.cli.sampling import Sampling
from foredraft.cli.values import Number
from foredraft.config import parse_speculation
from foredraft.engine.images import BLIND_HINT
from foredraft.errors import ForedraftError, RequestError
from foredraft.pictures import as_data_url


@dataclass(frozen=True, slots=True)
class Command:
    """A slash command. `argument` as shown: "" for none, "[X]" if optional, "X" if required."""

    name: str
    argument: str
    description: str
    run: Callable[[Chat, str], None]

    @property
    def usage(self) -> str:
        return f"/{self.name} {self.argument}".rstrip()


def is_command(line: str) -> bool:
    """Whether a line is a command rather than text for the model. A space before the slash makes it text."""
    return line.startswith("/")


def run_command(chat: Chat, line: str) -> None:
    """Run a slash command. Errors are shown; the session continues."""
    try:
        _find_and_run(chat, line)
    except ForedraftError as error:
        chat.failed = True
        chat.complain(error)


def _find_and_run(chat: Chat, line: str) -> None:
    name, *rest = line[1:].split(maxsplit=1) or [""]
    argument = "".join(rest).strip()
    command = COMMANDS.get(name.lower())
    if command is None:
        raise _unknown(name)
    if argument and not command.argument:
        raise RequestError(f"/{command.name} takes no argument.")
    if not argument and command.argument and not command.argument.startswith("["):
        raise RequestError(f"/{command.name} needs a {command.argument}.", hint=f"Use: {command.usage}")
    command.run(chat, argument)


def _unknown(name: str) -> RequestError:
    near = [known for known in COMMANDS if name and known.startswith(name.lower())]
    near = near or get_close_matches(name.lower(), COMMANDS, n=1)
    meant = f"Did you mean /{near[0]}? " if near else ""
    return RequestError(
        f"There is no command /{name}.",
        hint=f"{meant}/help lists the commands; a space before the slash sends the line as text.",
    )


# --- the commands --------------------------------------------------------------------------------------


def _help(chat: Chat, argument: str) -> None:  # noqa: ARG001
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for command in COMMANDS.values():
        table.add_row(escape(command.usage), command.description)
    chat.notes.print(table)
    chat.say("Alt-Enter or a backslash at the end of a line starts a new line. Ctrl-C stops an answer.")


def _reset(chat: Chat, argument: str) -> None:  # noqa: ARG001
    chat.conversation.reset()
    kept = "." if chat.conversation.system is None else "; the system message stays."
    chat.say(f"The conversation is forgotten{kept}")


def _save(chat: Chat, argument: str) -> None:
    path = _path(argument)
    if overwrites(path) and not chat.confirm(f"{path} exists. Overwrite it?"):
        chat.say("Not saved.")
        return
    chat.conversation.save(path)
    chat.say(f"Saved {_count(len(chat.conversation.messages))} to {path}.")


def _load(chat: Chat, argument: str) -> None:
    path = _path(argument)
    chat.conversation.load(path)
    system = "no system message" if chat.conversation.system is None else "with a system message"
    chat.say(f"Loaded {_count(len(chat.conversation.messages))} ({system}) from {path}.")


def _image(chat: Chat, argument: str) -> None:
    conversation = chat.conversation
    if argument == "-":
        conversation.images = []
    elif argument:
        if chat.engine.model.vision is None:
            raise RequestError("This model does not see images.", hint=BLIND_HINT)
        url = as_data_url(_path(argument))
        conversation.images.append({"type": "image_url", "image_url": {"url": url}})
    waiting = len(conversation.images)
    images = "No image is" if not waiting else "1 image is" if waiting == 1 else f"{waiting} images are"
    chat.say(f"{images} shown with the next question.")


def _path(argument: str) -> Path:
    """A file name as typed: surrounding quotes are removed, ~ is the home directory."""
    if len(argument) > 2 and argument[0] == argument[-1] and argument[0] in "\"'":
        argument = argument[1:-1]
    try:
        return Path(argument).expanduser()
    except RuntimeError:
        raise RequestError(f"There is no home directory for {argument}.") from None


def _count(messages: int) -> str:
    return f"{messages} message{'' if messages == 1 else 's'}"


def _speculate(chat: Chat, argument: str) -> None:
    if argument:
        speculation = parse_speculation(argument)
        check_drafts(speculation)
        chat.load_lost()
        with chat.notes.status("Loading the drafters…"):
            chat.engine.set_speculation(speculation)
        chat.speculation = str(speculation)
    chat.say(f"Speculation: {chat.speculation}")
    if chat.engine.setup.head is not None:
        chat.say(f"Head: {chat.engine.setup.head}")
    for note in chat.engine.notes:
        chat.say(f"Note: {note}")


def _stats(chat: Chat, argument: str) -> None:  # noqa: ARG001
    if not chat.totals.turns:
        chat.say("Nothing has been generated yet.")
        return
    chat.notes.print(chat.totals.table(chat.engine.model.info.context_length))


def _system(chat: Chat, argument: str) -> None:
    if argument:
        chat.conversation.system = None if argument == "-" else argument
    system = chat.conversation.system
    chat.say("There is no system message." if system is None else f"System message: {system}")


def _retry(chat: Chat, argument: str) -> None:  # noqa: ARG001
    chat.retry()


def _thought(chat: Chat, argument: str) -> None:
    if argument in ("on", "off"):
        chat.thoughts = argument == "on"
        chat.say("Thoughts are shown." if chat.thoughts else "A line stands for each thought.")
    elif argument:
        raise RequestError(f"/thought {argument} is not known.", hint="Use: /thought, /thought on or off.")
    elif chat.thought:
        chat.notes.print(f"[dim]{escape(chat.thought)}[/]", soft_wrap=not chat.notes.is_terminal)
    else:
        chat.say("There is no thought before the last answer.")


def _temp(chat: Chat, argument: str) -> None:
    if argument:
        said = {name: value for name, value in chat.sampling.given.items() if name != "temperature"}
        chat.sampling = Sampling(said if argument == "-" else said | {"temperature": _temperature(argument)})
    temperature = chat.params.temperature
    chat.say(f"Temperature: {temperature:g}" + (", always the likeliest token" if not temperature else ""))


def _temperature(argument: str) -> float:
    try:
        return Number(0).convert(argument, None, None)
    except click.BadParameter as error:
        raise RequestError(
            error.message, hint="Use: /temp 0.7, or /temp - for the model's default."
        ) from None


def _model(chat: Chat, argument: str) -> None:
    if argument:
        chat.use_model(str(_path(argument)))
    chat.say(chat.about())


def _quit(chat: Chat, argument: str) -> None:  # noqa: ARG001
    chat.leaving = True


COMMANDS = {
    command.name: command
    for command in (
        Command("help", "", "Show this list.", _help),
        Command("retry", "", "Answer the last question again.", _retry),
        Command("reset", "", "Forget the conversation; the system message stays.", _reset),
        Command(
            "save", "FILE", "Write the conversation to a JSON file; asks before it overwrites one.", _save
        ),
        Command("load", "FILE", "Continue a conversation from a JSON file.", _load),
        Command(
            "speculate",
            "[SPEC]",
            "Show or change speculation: auto, off, or drafters as in --speculate.",
            _speculate,
        ),
        Command("image", "[FILE]", "Show an image with the next question; - shows none.", _image),
        Command("stats", "", "Show this session's token counts, speed and speculation.", _stats),
        Command("system", "[TEXT]", "Show or set the system message; - removes it.", _system),
        Command("thought", "[on|off]", "Show what the model thought; on shows it from now on.", _thought),
        Command("temp", "[X]", "Show or set the temperature; - is the model's default.", _temp),
        Command("model", "[MODEL]", "Show the model, or continue with another.", _model),
        Command("exit", "", "Quit. Ctrl-D and /quit do too.", _quit),
        Command("quit", "", "Leave.", _quit),
    )
}
