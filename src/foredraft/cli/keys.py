"""`foredraft keys`: the API keys in the server's settings file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click
from rich.console import Console
from rich.table import Table

from foredraft.cli.values import Whole
from foredraft.errors import quoted
from foredraft.server.auth import hash_key, new_key
from foredraft.server.settings import PRIORITIES, KeySettings
from foredraft.server.settings_edit import add_key, remove_key, set_admin_key
from foredraft.server.settings_file import FILE_NAME, read_settings

Command = TypeVar("Command", bound=Callable[..., Any])


def _file_option(command: Command) -> Command:
    return click.option(
        "--file",
        "-f",
        "file",
        type=click.Path(path_type=Path),
        default=FILE_NAME,
        show_default=True,
        help="The settings file.",
    )(command)


@click.group()
def keys() -> None:
    """Create and remove API keys for the server.

    They are stored in its settings file, as hashes. A running server reloads the file when it changes.
    """


@keys.command()
@click.argument("name")
@click.option(
    "--scope",
    metavar="NAME",
    default=None,
    show_default="the key's name",
    help="Scope of the key. Keys with the same scope share learned texts.",
)
@click.option(
    "--rate",
    type=Whole(1),
    default=None,
    show_default="no limit",
    help="Maximum requests per minute.",
)
@click.option(
    "--concurrent",
    type=Whole(1),
    default=None,
    show_default="no limit",
    help="Maximum answers at the same time.",
)
@click.option(
    "--priority",
    type=Whole(-PRIORITIES, PRIORITIES),
    default=0,
    show_default=True,
    help="Highest priority that requests with this key can set.",
)
@_file_option
def new(
    name: str, *, scope: str | None, rate: int | None, concurrent: int | None, priority: int, file: Path
) -> None:
    """Create a key and print it once: only its hash is stored."""
    key = new_key()
    add_key(
        file,
        KeySettings(
            name=name,
            hash=hash_key(key),
            scope=scope,
            requests_per_minute=rate,
            max_concurrent=concurrent,
            max_priority=priority,
        ),
    )
    _show(key, f"The key {quoted(name)} is in {file}, as a hash. It is shown only this once:")


@keys.command("list")
@_file_option
def list_command(file: Path) -> None:
    """List the keys: names and limits, no secrets."""
    settings = read_settings(file)
    if not settings.keys:
        click.echo(f"There are no keys in {file}: anyone who can reach the server can use it.")
    else:
        table = Table(box=None, header_style="bold", pad_edge=False)
        for title in ("key", "scope"):
            table.add_column(title, overflow="fold")
        for title in ("requests a minute", "at once"):
            table.add_column(title, justify="right")
        for key in settings.keys:
            scope = key.effective_scope or "(this computer's own)"
            table.add_row(key.name, scope, _limit(key.requests_per_minute), _limit(key.max_concurrent))
        Console(markup=False, highlight=False).print(table)
    click.echo(f"Admin key: {'yes' if settings.admin_key_hash else 'none'}")


@keys.command()
@click.argument("name")
@_file_option
def remove(name: str, *, file: Path) -> None:
    """Remove the key NAME: the server refuses it from then on."""
    remaining = remove_key(file, name)
    click.echo(f"Removed the key {quoted(name)} from {file}.")
    click.echo("The state learned in its scope stays until 'foredraft forget'.", err=True)
    if not remaining:
        click.echo("It was the last key: a server started now accepts requests without one.", err=True)


@keys.command()
@click.option("--remove", "removes", is_flag=True, help="Remove the admin key.")
@_file_option
def admin(*, removes: bool, file: Path) -> None:
    """Create the admin key, for loading and unloading models. It replaces the previous one."""
    if removes:
        set_admin_key(file, None)
        click.echo(f"Removed the admin key from {file}.")
        return
    key = new_key()
    set_admin_key(file, hash_key(key))
    _show(key, f"The admin key is in {file}, as a hash. It is shown only this once:")


def _show(key: str, explanation: str) -> None:
    """Print the key alone on standard output, so that it can be piped."""
    click.echo(explanation, err=True)
    click.echo(key)


def _limit(limit: int | None) -> str:
    return "no limit" if limit is None else f"{limit:,}"
