"""`foredraft draft list` and `remove`: the heads that are installed, and those that come with Foredraft."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from textwrap import TextWrapper

import click

from foredraft.backends.llamacpp.gguf_file import read_gguf
from foredraft.backends.llamacpp.gguf_native import Array
from foredraft.cli import paths
from foredraft.cli.prompting import typed_at
from foredraft.cli.units import size_text
from foredraft.errors import ConfigError, ModelError, ModelNotFoundError, printable, quoted
from foredraft.library.catalogue import heads_dir
from foredraft.library.heads import packaged_heads, several_heads
from foredraft.library.split import is_later_part, model_files, split_stem


@dataclass(frozen=True, slots=True)
class InstalledHead:
    """A head in the models folder, or one that is `packaged` with Foredraft. `acceptance`: of drafts of 1, 2,
    … tokens on answers that it had not seen; empty for a head that Foredraft did not make. `problem`: why it
    cannot be read.
    """

    name: str
    path: str
    bytes: int
    target: str = ""
    acceptance: tuple[float, ...] = ()
    made: str = ""
    problem: str = ""
    packaged: bool = False


def installed_heads() -> list[InstalledHead]:
    """All heads of the models folder, by name, then packaged ones. Raises ConfigError if the folder cannot be
    read.
    """
    packaged = [replace(_described(path), packaged=True) for path in packaged_heads()]
    return [_described(path) for path in _heads_in(heads_dir(paths.models_dir()))] + packaged


def _heads_in(folder: Path) -> list[Path]:
    try:
        found = sorted(path for path in folder.iterdir() if not path.name.startswith("."))
    except FileNotFoundError:
        return []
    except OSError as error:
        raise ConfigError(f"{folder} cannot be read: {error.strerror}.") from None
    return [
        path for path in found if path.is_dir() or (path.suffix == ".gguf" and not is_later_part(path.stem))
    ]


def _described(path: Path) -> InstalledHead:
    name = split_stem(path.name.removesuffix(".gguf"))
    size = path.lstat().st_size
    try:
        if path.is_dir():
            return InstalledHead(name, str(path), sum(file.lstat().st_size for file in path.iterdir()))
        size = path.stat().st_size
        summary = read_gguf(path)
        size, metadata = summary.size_bytes, summary.metadata
    except OSError as error:  # such as a link to nothing
        return InstalledHead(name, str(path), size, problem=f"cannot be read: {error.strerror}")
    except ModelError as error:
        return InstalledHead(name, str(path), size, problem=error.message)
    shares = metadata.get("foredraft.acceptance")
    values = (
        tuple(share for share in shares.head if isinstance(share, float)) if isinstance(shares, Array) else ()
    )
    return InstalledHead(
        name,
        str(path),
        size,
        str(metadata.get("foredraft.target_name", "")),
        values,
        str(metadata.get("foredraft.made", "")),
    )


@click.command(name="list")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
def list_heads(*, as_json: bool) -> None:
    """List the installed heads, and those that are packaged with Foredraft: for which model, how large, how
    often right on answers that they had not seen, made when.
    """
    heads = installed_heads()
    if as_json:
        click.echo(json.dumps([asdict(head) for head in heads], indent=2, ensure_ascii=False))
        return
    if not heads:
        click.echo("No heads are installed. To make one for a model: foredraft draft make MODEL")
        return
    for head in heads:
        click.echo(head.name)
        wrapper = TextWrapper(
            shutil.get_terminal_size().columns,
            initial_indent="  ",
            subsequent_indent="  ",
            break_long_words=False,
            break_on_hyphens=False,
        )
        click.echo(wrapper.fill(printable(", ".join(_about(head)))))


def _about(head: InstalledHead) -> Iterator[str]:
    """What is known of a head, for people."""
    if head.packaged:
        yield "packaged"
    if head.problem:
        yield head.problem
    if head.target:
        yield f"for {head.target}"
    yield size_text(head.bytes)
    if head.acceptance:
        right = ", ".join(f"{share:.0%}" for share in _by_depth(head.acceptance))
        yield f"right at depth 1, 2, 3: {right}"
    if head.made:
        yield f"made {head.made} UTC"


def _by_depth(joint: tuple[float, ...]) -> Iterator[float]:
    """Of each token, given that those before it are right."""
    before = 1.0
    for share in joint:
        yield share / before if before else 0.0
        before = share


@click.command()
@click.argument("name")
@click.option("--yes", "-y", is_flag=True, help="Do not ask for confirmation.")
def remove(name: str, *, yes: bool) -> None:
    """Remove an installed head. NAME is one of 'foredraft draft list', or the beginning of one; or a path."""
    if not name:
        raise ConfigError("No name was given.", hint="'foredraft draft list' shows the names.")
    heads = installed_heads()
    found = _named(name, heads)
    if not found:
        raise ModelNotFoundError(
            f"There is no installed head {quoted(name)}.",
            hint="'foredraft draft list' shows those there are.",
        )
    found = [head for head in found if not head.packaged] or found
    if len(found) > 1:
        raise several_heads(name, [head.path for head in found])
    [head] = found
    if head.packaged:
        raise ConfigError(
            f"{head.name} comes with Foredraft and cannot be removed.",
            hint="'auto' asks it only where it pays; a head of your own for the same model takes its place.",
        )
    if not yes:
        if not typed_at():
            raise ConfigError("There is no terminal to ask on.", hint="Add --yes.")
        if not click.confirm(f"Remove {head.name} ({size_text(head.bytes)})?"):
            click.echo("Nothing was removed.")
            return
    _delete(Path(head.path))
    click.echo(f"Removed {head.name}.")


def _named(name: str, heads: list[InstalledHead]) -> list[InstalledHead]:
    """The heads of that path or file name, else of that name, else of that beginning or target."""
    file = Path(name).name if name.endswith(".gguf") else None
    return (
        [head for head in heads if head.path == name or Path(head.path).name == file]
        or [head for head in heads if head.name == name]
        or [head for head in heads if head.name.startswith(name) or head.target == name]
    )


def _delete(path: Path) -> None:
    """Raises ConfigError."""
    try:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            for file in model_files(path):
                file.unlink(missing_ok=True)
    except OSError as error:
        raise ConfigError(f"{path} cannot be removed: {error.strerror}.") from None
