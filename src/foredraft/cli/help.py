"""`--help` with options in groups, the common ones first, and examples."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeVar

import click
from click.types import OptionHelpExtra

Decorated = TypeVar("Decorated", bound=Callable[..., Any])

COMMON = "Common options"
OUTPUT = "Output"
SERVING = "Serving"
SAMPLING = "Sampling"
LOADING = "Loading the model"
SPECULATION = "Speculation"
PEERS = "Speculation, as other tools spell it"
OTHER = "Other options"
GROUPS = (COMMON, OUTPUT, SERVING, SAMPLING, LOADING, SPECULATION, PEERS, OTHER)
"""The groups in the order in which they are shown."""


class GroupedOption(click.Option):
    """An option with the heading under which it is listed."""

    def __init__(self, *arguments: Any, group: str = OTHER, **attributes: Any) -> None:
        super().__init__(*arguments, **attributes)
        self.group = group

    def get_help_extra(self, ctx: click.Context) -> OptionHelpExtra:
        """As in click, but without parentheses around a default given in words."""
        extra = super().get_help_extra(ctx)
        if isinstance(self.show_default, str):
            extra["default"] = self.show_default
        return extra


def option(*flags: str, group: str, **attributes: Any) -> Callable[[Decorated], Decorated]:
    """`click.option` in a group of the help."""
    return click.option(*flags, cls=GroupedOption, group=group, **attributes)


class GroupedCommand(click.Command):
    """A command that lists its options in groups, and examples before them. `instead`: what to do for options
    of other commands.
    """

    def __init__(
        self,
        *arguments: Any,
        examples: Sequence[str] = (),
        instead: Mapping[str, str] = MappingProxyType({}),
        **attributes: Any,
    ) -> None:
        super().__init__(*arguments, **attributes)
        self.examples = tuple(examples)
        self.instead = instead

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """As in click; an option of another command is refused with what to do instead."""
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            if (hint := self.instead.get(error.option_name)) is None:
                raise
            message = f"No such option '{error.option_name}'. {hint}"
            raise click.NoSuchOption(error.option_name, message, ctx=ctx) from None

    def grouped(self, ctx: click.Context) -> list[tuple[str, list[click.Parameter]]]:
        """The options by heading."""
        groups: dict[str, list[click.Parameter]] = {group: [] for group in GROUPS}
        for param in self.get_params(ctx):
            if not isinstance(param, click.Argument):
                groups[getattr(param, "group", OTHER)].append(param)
        return [(group, params) for group, params in groups.items() if params]

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the examples, and the options in groups."""
        if self.examples:
            with formatter.section("Examples"):
                for example in self.examples:
                    formatter.write(f"{'':>{formatter.current_indent}}{example}\n")
        for group, params in self.grouped(ctx):
            records = [record for param in params if (record := param.get_help_record(ctx)) is not None]
            with formatter.section(group):
                formatter.write_dl(records)
