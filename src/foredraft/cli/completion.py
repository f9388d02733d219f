"""Completion of commands, options, models and drafters in shells, and `foredraft completion`."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Any

import click
from click.shell_completion import (
    BashComplete,
    CompletionItem,
    FishComplete,
    ShellComplete,
    ZshComplete,
    add_completion_class,
    get_completion_class,
    split_arg_string,
)

from foredraft.cli import COMPLETE_VARIABLE, cli
from foredraft.cli.help import GroupedCommand

BASH = """\
%(complete_func)s() {
    local line
    while IFS= read -r line; do
        case $line in
            plain,*) COMPREPLY+=("${line#*,}") ;;
            dir,*) compopt -o dirnames ;;
            file,*) compopt -o default ;;
        esac
    done < <(COMP_LINE="${COMP_LINE:0:COMP_POINT}" %(complete_var)s=bash_complete "$1" 2>/dev/null)
}
complete -o nosort -F %(complete_func)s %(prog_name)s
"""
"""Files are completed where nothing else fits."""

WORD_BREAKS = ":="
"""bash begins a new word after these characters, and replaces only that word."""

INSTALL = {
    "bash": """\
# For new shells, with the package bash-completion:
#   mkdir -p ~/.local/share/bash-completion/completions
#   foredraft completion bash > ~/.local/share/bash-completion/completions/foredraft
# Only for this one: eval "$(foredraft completion bash)"
""",
    "zsh": """\
# For new shells: this line at the end of ~/.zshrc, after compinit
#   eval "$(foredraft completion zsh)"
""",
    "fish": """\
# For new shells:
#   mkdir -p ~/.config/fish/completions
#   foredraft completion fish > ~/.config/fish/completions/foredraft.fish
""",
}
"""By shell, how to install the script: comments at its end."""


class _WholeWords(ShellComplete):
    """Completes `--option=value` as the one word that it is; click gives the value alone."""

    def get_completions(self, args: list[str], incomplete: str) -> list[CompletionItem[Any]]:
        """Whole words."""
        found = super().get_completions(args, incomplete)
        option, equals, _ = incomplete.partition("=")
        if equals and option.startswith("--"):
            for item in found:
                item.value = item.value if item.type == "file" else f"{option}={item.value}"
        return found


@add_completion_class
class Bash(_WholeWords, BashComplete):
    """bash, also for names with a colon, such as OWNER/NAME:QUANT."""

    source_template = BASH

    def get_completion_args(self) -> tuple[list[str], str]:
        """The words before the cursor, and the one at it."""
        line = os.environ["COMP_LINE"]
        words = split_arg_string(line)[1:]
        return (words, "") if line[-1:].isspace() or not words else (words[:-1], words[-1])

    def get_completions(self, args: list[str], incomplete: str) -> list[CompletionItem[Any]]:
        """Whole words without what stands before bash's own word."""
        found = super().get_completions(args, incomplete)
        passed = 1 + max(map(incomplete.rfind, WORD_BREAKS))
        for item in found:
            if item.value[:passed].casefold() == incomplete[:passed].casefold():
                item.value = item.value[passed:]
        return found


@add_completion_class
class Zsh(_WholeWords, ZshComplete):
    """zsh."""


@add_completion_class
class Fish(_WholeWords, FishComplete):
    """fish."""


@click.command(
    cls=GroupedCommand,
    examples=('eval "$(foredraft completion bash)"', "foredraft completion fish | source"),
)
@click.argument("shell", type=click.Choice([*INSTALL]))
def completion(shell: str) -> None:
    """Print the script that completes foredraft's commands, options, models and drafters in a shell.

    Its last lines say how to install it.
    """
    kind = get_completion_class(shell)
    assert kind is not None, "click has these shells"
    click.echo(kind(cli, {}, "foredraft", COMPLETE_VARIABLE).source().strip("\n"))
    click.echo("\n" + INSTALL[shell], nl=False)


def complete_models(
    _context: click.Context, _parameter: click.Parameter, incomplete: str
) -> list[CompletionItem[Any]]:
    """The names of models that begin like this, in any case, and files."""
    from foredraft import library
    from foredraft.cli import paths
    from foredraft.errors import ForedraftError

    wanted, names = incomplete.casefold(), list[str]()
    with suppress(ForedraftError, OSError):  # nothing is said while a line is being typed
        for model in library.list_models(paths.models_dir(), paths.other_programs()):
            fitting = [name for name in model.answers_to() if name.casefold().startswith(wanted)]
            names += [model.name] if model.name in fitting else fitting[:1]
    plain = [CompletionItem(name) for name in dict.fromkeys(names) if len(name.split()) == 1]
    return [*plain, *complete_files(_context, _parameter, incomplete)]


def complete_files(
    _context: click.Context, _parameter: click.Parameter, incomplete: str
) -> list[CompletionItem[Any]]:
    """Files, which the shell knows."""
    return [CompletionItem(incomplete, type="file")]


def complete_speculation(
    _context: click.Context, _parameter: click.Parameter, incomplete: str
) -> list[CompletionItem[Any]]:
    """`auto`, `off`, and drafters, each also after a semicolon."""
    from foredraft.config import AUTO, OFF
    from foredraft.registry import drafter_names

    before = incomplete[: incomplete.rfind(";") + 1]
    names = drafter_names() if before else [AUTO, OFF, *drafter_names()]
    return [CompletionItem(before + name) for name in names if (before + name).startswith(incomplete)]
