"""`foredraft forget`: erase what is remembered of past texts, and profiles."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import click

from foredraft.cli import paths
from foredraft.cli.prompting import typed_at
from foredraft.cli.units import counted, size_text
from foredraft.drafters import suffix_store
from foredraft.engine.prefix import file_format
from foredraft.errors import BackendError, ConfigError
from foredraft.planner import profile as profiles

PROFILES = "profiles of models"


@dataclass(frozen=True, slots=True)
class Memory:
    """Files of one kind that remember something: what they are, for the user, and how much they hold."""

    what: str
    files: Sequence[Path]
    bytes: int

    def __str__(self) -> str:
        return f"{self.what}: {counted(len(self.files), 'file')}, {size_text(self.bytes)}"


@click.command()
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@click.option("--dry-run", is_flag=True, help="Only show what would be erased.")
@click.option("--profiles", "with_profiles", is_flag=True, help="Erase the profiles of models, too.")
def forget(*, yes: bool, dry_run: bool, with_profiles: bool) -> None:
    """Erase what is remembered of past texts on this computer.

    That is the store of past outputs, the n-gram counts that were learned from them, a server's prefix
    cache, and the lines typed into chats. With --profiles also what models cost here and how often their
    drafts were right, in which there is no text. Models, other measurements, saved conversations and files
    that you named yourself stay.
    """
    try:
        memories = remembered()
        kept = profile_files()
    except OSError as error:
        raise ConfigError(f"{paths.cache_dir()} cannot be read: {error.strerror or error}.") from error
    if with_profiles and kept:
        memories.append(kept)
    if memories:
        click.echo(f"Remembered in {paths.cache_dir()}:")
    else:
        click.echo(f"Nothing is remembered in {paths.cache_dir()}.")
    for memory in memories:
        click.echo(f"  {memory}")
    if kept and not with_profiles:
        click.echo(f"Not erased without --profiles: {kept}.")
    if memories:
        _decide(memories, yes=yes, dry_run=dry_run)


def _decide(memories: Sequence[Memory], *, yes: bool, dry_run: bool) -> None:
    if dry_run:
        click.echo("Nothing was erased (--dry-run).")
    elif yes or _agreed():
        _erase(memories)
    else:
        click.echo("Nothing was erased.")


def remembered() -> list[Memory]:
    """What there is to erase, without what is empty. Raises OSError."""
    store = paths.store_dir()
    files = suffix_store.remembered(store)
    history = paths.history_file()
    kinds = {
        "past outputs": [file for file in files if file.name.startswith("suffix-")],
        "n-gram counts": [file for file in files if not file.name.startswith("suffix-")],
        "prefix cache": file_format.remembered(file_format.prefixes_dir(paths.cache_dir())),
        "typed lines": [history] if history.is_file() else [],
    }
    return [
        Memory(what, found, sum(file.lstat().st_size for file in found))
        for what, found in kinds.items()
        if found
    ]


def profile_files() -> Memory | None:
    """The profiles of models, or None. Raises OSError."""
    found = profiles.files(profiles.profiles_dir(paths.cache_dir()))
    return Memory(PROFILES, found, sum(file.lstat().st_size for file in found)) if found else None


def _agreed() -> bool:
    if not typed_at():
        raise ConfigError("Nobody can be asked here.", hint="Say --yes to erase, or --dry-run to look.")
    return click.confirm("Erase this?")


def _erase(memories: Sequence[Memory]) -> None:
    try:
        suffix_store.forget(paths.store_dir())
        file_format.forget(file_format.prefixes_dir(paths.cache_dir()))
        paths.history_file().unlink(missing_ok=True)
        if any(memory.what == PROFILES for memory in memories):
            profiles.erase(profiles.profiles_dir(paths.cache_dir()))
    except OSError as error:
        raise BackendError(
            f"Not everything could be erased: {error.filename}: {error.strerror}.",
            hint="'foredraft forget --dry-run' shows what is left.",
        ) from error
    files = sum(len(memory.files) for memory in memories)
    click.echo(f"Erased {counted(files, 'file')}, {size_text(sum(m.bytes for m in memories))}.")
