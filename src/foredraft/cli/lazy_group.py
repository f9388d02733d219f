"""Groups of commands that are imported when they are used: `--help` and completion are quick."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from importlib import import_module
from typing import TYPE_CHECKING, Any

import click

from foredraft.errors import quoted

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem


class LazyGroup(click.Group):
    """A group whose subcommands are imported only when one is used: `lazy` has each one's import path and
    help line.
    """

    def __init__(self, *arguments: Any, lazy: Mapping[str, tuple[str, str]], **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._lazy = lazy

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return list(self._lazy)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in self._lazy:
            return None
        module, _, name = self._lazy[cmd_name][0].partition(":")
        command: click.Command = getattr(import_module(module), name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """The list of commands in the help."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in self._lazy.items()])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """The commands that begin like this; click would import them all."""
        from click.shell_completion import CompletionItem

        fitting = [(name, line) for name, (_, line) in self._lazy.items() if name.startswith(incomplete)]
        commands = [CompletionItem(name, help=line) for name, line in fitting]
        return [*commands, *click.Command.shell_complete(self, ctx, incomplete)]

    def invoke(self, ctx: click.Context) -> Any:
        """Invoke as click does, without writing to a standard error that Ctrl-C may have closed."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as stop:
            raise click.Abort from stop

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Resolve as click does, but suggest names of all commands; click only knows imported ones."""
        name = args[0]
        near = [] if name in self._lazy else get_close_matches(name, self._lazy, n=1)
        if near:
            ctx.fail(f"No such command {quoted(name)}. Did you mean {quoted(near[0])}?")
        return super().resolve_command(ctx, args)
