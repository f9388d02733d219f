"""`foredraft forget`: erase stored data about past texts, and profiles."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import click

from foredraft.cli import paths
from foredraft.cli.prompting import typed_at
from foredraft.cli.units import counted, size_text
from foredraft.draft.make.workfolder import HEAD
from foredraft.drafters import suffix_store
from foredraft.engine import profile_store as profiles
from foredraft.engine.prefix import file_format
from foredraft.errors import BackendError, ConfigError

PROFILES = "profiles of models"


@dataclass(frozen=True, slots=True)
class Memory:
    """Stored files of one kind: their description for the user, and their size."""

    what: str
    files: Sequence[Path]
    bytes: int

    def __str__(self) -> str:
        return f"{self.what}: {counted(len(self.files), 'file')}, {size_text(self.bytes)}"


@click.command()
@click.option("--yes", "-y", is_flag=True, help="Do not ask for confirmation.")
@click.option("--dry-run", is_flag=True, help="Show what would be erased, without erasing it.")
@click.option("--profiles", "with_profiles", is_flag=True, help="Also erase the profiles of models.")
def forget(*, yes: bool, dry_run: bool, with_profiles: bool) -> None:
    """Erase stored data about past texts on this computer.

    That is the store of past outputs, the n-gram counts learned from them, a server's prefix cache, the lines
    typed into chats, and the answers that 'foredraft draft make' keeps. With --profiles also the measured
    costs and acceptance rates of models, which contain no text. Models, heads, other measurements, saved
    conversations and files that you named yourself are kept.
    """
    try:
        memories = remembered()
        kept, heads = profile_files(), heads_made()
    except OSError as error:
        raise ConfigError(f"{paths.cache_dir()} cannot be read: {error.strerror or error}.") from error
    if with_profiles and kept:
        memories.append(kept)
    if memories:
        click.echo(f"Stored in {paths.cache_dir()}:")
    else:
        click.echo(f"Nothing is stored in {paths.cache_dir()}.")
    for memory in memories:
        click.echo(f"  {memory}")
    for head in heads:
        click.echo(f"Kept: {head}, a head that was made and not installed.")
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
    """The files to erase by kind, without empty kinds. Raises OSError."""
    store = paths.store_dir()
    files = suffix_store.remembered(store)
    history = paths.history_file()
    made = heads_made()
    making = [file for file in sorted(paths.making_dir().rglob("*")) if file.is_file() and file not in made]
    kinds = {
        "past outputs": [file for file in files if file.name.startswith("suffix-")],
        "n-gram counts": [file for file in files if not file.name.startswith("suffix-")],
        "prefix cache": file_format.remembered(file_format.prefixes_dir(paths.cache_dir())),
        "typed lines": [history] if history.is_file() else [],
        "answers that heads were made from": making,
    }
    return [
        Memory(what, found, sum(file.lstat().st_size for file in found))
        for what, found in kinds.items()
        if found
    ]


def heads_made() -> list[Path]:
    """Heads that were made and not installed: they contain no text. Raises OSError."""
    return sorted(paths.making_dir().glob(f"*/{HEAD}"))


def profile_files() -> Memory | None:
    """The profiles of models, or None if there are none. Raises OSError."""
    found = profiles.files(profiles.profiles_dir(paths.cache_dir()))
    return Memory(PROFILES, found, sum(file.lstat().st_size for file in found)) if found else None


def _agreed() -> bool:
    if not typed_at():
        raise ConfigError("There is no terminal to ask on.", hint="Add --yes to erase, or --dry-run to look.")
    return click.confirm("Erase this?")


def _forget_making() -> None:
    """Erase what heads were made from, and keep the heads. Raises OSError."""
    for folder in paths.making_dir().glob("*"):
        if not (folder / HEAD).is_file():
            shutil.rmtree(folder)
            continue
        for path in folder.iterdir():
            if path.is_dir():
                shutil.rmtree(path)
            elif path.name != HEAD:
                path.unlink()
    with suppress(OSError):  # heads are in it, or it is not there
        paths.making_dir().rmdir()


def _erase(memories: Sequence[Memory]) -> None:
    try:
        suffix_store.forget(paths.store_dir())
        file_format.forget(file_format.prefixes_dir(paths.cache_dir()))
        paths.history_file().unlink(missing_ok=True)
        _forget_making()
        if any(memory.what == PROFILES for memory in memories):
            profiles.erase(profiles.profiles_dir(paths.cache_dir()))
    except OSError as error:
        raise BackendError(
            f"Not everything could be erased: {error.filename}: {error.strerror}.",
            hint="'foredraft forget --dry-run' shows what is left.",
        ) from error
    files = sum(len(memory.files) for memory in memories)
    click.echo(f"Erased {counted(files, 'file')}, {size_text(sum(m.bytes for m in memories))}.")
