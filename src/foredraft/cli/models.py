"""`foredraft models`: the models on this computer."""

from __future__ import annotations

import json
import sys
import warnings
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Table

from foredraft import library
from foredraft.cli import paths
from foredraft.cli.completion import complete_models
from foredraft.cli.model_summary import kind_of, vision_of
from foredraft.cli.models_hub import pull, search
from foredraft.cli.models_inspect import inspect
from foredraft.cli.options import llama_library_option
from foredraft.cli.render import cell, stderr_console
from foredraft.cli.units import counted, size_text
from foredraft.cli.values import Whole
from foredraft.config import MOST_THREADS
from foredraft.errors import ConfigError
from foredraft.library.repository import repository_of
from foredraft.library.split import model_files

if TYPE_CHECKING:
    from foredraft.embedding import ModelKind
    from foredraft.library import StoredModel
    from foredraft.library.removal import Removal

SOURCES = {
    "ollama": "Ollama",
    "lmstudio": "LM Studio",
    "huggingface": "Hugging Face cache",
    "llamacpp": "llama.cpp cache",
}
"""Names of the other programs that models come from."""


@click.group()
def models() -> None:
    """List, download, convert and delete models."""


models.add_command(search)
models.add_command(pull)
models.add_command(inspect)


# --- list ----------------------------------------------------------------------------------------------


@models.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
def list_command(as_json: bool) -> None:
    """List the models on this computer, including those of Ollama, LM Studio, the Hugging Face cache and
    llama.cpp.

    All of them are used in place, by the names shown here.
    """
    folder = paths.models_dir()
    left_out: list[str] = []
    found = library.list_models(folder, paths.other_programs(), left_out.append)
    default = library.default_model()
    kinds = {model.path: kind_of(model.path) for model in found if model.complete}
    visions = {model.path: vision_of(model.path) for model in found if model.complete}
    if as_json:
        listed = [
            _model_json(model, default, visions.get(model.path)) | {"kind": kinds.get(model.path)}
            for model in found
        ]
        click.echo(json.dumps(listed, indent=2))
        return
    for said in left_out:
        click.echo(f"Note: {said}", err=True)
    if not found:
        click.echo(f"There are no models in {folder}.\nGet one: foredraft models pull OWNER/NAME[:QUANT]")
        return
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("model", overflow="fold")
    table.add_column("quantization")
    table.add_column("size", justify="right", no_wrap=True)
    table.add_column("source")
    for model in found:
        note = " (default)" if model.path == default else "" if model.complete else " (incomplete)"
        note += _kind_note(kinds.get(model.path)) + (" (images)" if visions.get(model.path) else "")
        source = SOURCES.get(model.source, model.source) + note
        table.add_row(cell(model.name), cell(model.quantization), size_text(model.size_bytes), source)
    Console().print(table)


def _kind_note(kind: ModelKind | None) -> str:
    """What follows the name of a model that does not generate."""
    return "" if kind in (None, "generative") else f" ({kind})"


def _model_json(model: StoredModel, default: Path | None, vision: Path | None) -> dict[str, Any]:
    values = asdict(model) | {"name": model.name, "path": str(model.path)}
    values["mmproj"] = None if vision is None else str(vision)
    return values | {"default": model.path == default}


# --- rm ------------------------------------------------------------------------------------------------


@models.command()
@click.argument("names", metavar="NAME…", nargs=-1, required=True, shell_complete=complete_models)
@click.option("--yes", "-y", is_flag=True, help="Do not ask for confirmation.")
def rm(names: tuple[str, ...], *, yes: bool) -> int:
    """Delete models from the models folder, by the full names that 'foredraft models list' shows.

    Only files in that folder are deleted. Delete other programs' models with those programs.
    """
    folder, others = paths.models_dir(), paths.other_programs()
    chosen = library.to_remove(names, folder, others)
    for removal in chosen:
        click.echo(_what_goes(removal), err=True)
    if not yes and not _confirmed():
        click.echo("Nothing was deleted.", err=True)
        return 1
    for removal in chosen:
        removal.carry_out()
        click.echo(f"Deleted {removal.model.name}, {size_text(removal.size_bytes)}")
    return 0


def _what_goes(removal: Removal) -> str:
    files, links = removal.files, sum(file.is_symlink() for file in removal.files)
    said = f"{removal.model.name}: {counted(len(files), 'file')}, {size_text(removal.size_bytes)}"
    said += f", in {removal.model.path.parent if removal.model.format == 'gguf' else removal.model.path}"
    said += f", with its vision file {removal.vision.name}" if removal.vision is not None else ""
    said += f" ({counted(links, 'link')}, whose targets are kept)" if links else ""
    others = [path.name for path in removal.rest]
    shown = f"{', '.join(others[:5])}{', …' if len(others) > 5 else ''}"
    return said + (f"\nOther files in the folder are kept: {shown}" if others else "")


def _confirmed() -> bool:
    if not _terminal():
        raise ConfigError("There is no terminal to ask on.", hint="Add --yes to delete.")
    return click.confirm("Delete this?", err=True)


def _terminal() -> bool:
    return sys.stdin is not None and sys.stdin.isatty()


# --- quantize ------------------------------------------------------------------------------------------


@models.command()
@click.argument("source", metavar="SRC", shell_complete=complete_models)
@click.argument("type_name", metavar="TYPE")
@click.option("-o", "--output", metavar="OUT", type=click.Path(path_type=Path), help="The file to write.")
@click.option("--force", is_flag=True, help="Overwrite OUT if it exists.")
@click.option("--allow-requantize", is_flag=True, help="Allow quantising again, which loses more precision.")
@click.option(
    "--threads",
    default=0,
    show_default="all cores",
    type=Whole(0, MOST_THREADS),
    help="Number of threads.",
)
@llama_library_option
def quantize(
    source: str,
    type_name: str,
    *,
    output: Path | None,
    force: bool,
    allow_requantize: bool,
    threads: int,
    llama_library: Path | None,
) -> None:
    """Write SRC with its weights as TYPE (q4_0, q4_k_m, q8_0, …).

    SRC is a GGUF file or the name of one. Without -o, the new file goes into the models folder, and can be
    used by its name.
    """
    from foredraft.backends.llamacpp.quantize import quantize as run

    src = paths.locate(source)
    if repository_of(src) is not None:
        raise ConfigError(
            f"{src} holds safetensors; only a GGUF can be quantised.",
            hint="Convert it first, with convert_hf_to_gguf.py of llama.cpp, or pull a GGUF of the model.",
        )
    dst = output or _output(src, type_name)
    errors = stderr_console()
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed}/{task.total} tensors"),
        console=errors,
        transient=True,
        disable=not errors.is_terminal,
    )
    with bar, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        task = bar.add_task("quantising", total=None)

        summary = run(
            src,
            dst,
            type_name,
            threads=threads,
            force=force,
            allow_requantize=allow_requantize,
            llama_library=llama_library,
            progress=lambda done, total: bar.update(task, completed=done, total=total),
        )
    for warning in caught:
        click.echo(f"Note: {warning.message}", err=True)
    before = sum(file.stat().st_size for file in model_files(src))
    share = f"{100 * summary.size_bytes / before:.0f} %"
    click.echo(f"{dst}: {size_text(summary.size_bytes)}, {share} of {library.stem_of(src)}")
    named = [model.name for model in library.list_models(paths.models_dir()) if model.path == dst.absolute()]
    for name in named[:1]:
        click.echo(f"Run it: foredraft run {name}")


def _output(src: Path, type_name: str) -> Path:
    """The path of the quantised file: in the models folder, which is created if needed, or beside the source
    if that lies in it.

    Raises ConfigError for an unknown type, or if the folder cannot be created.
    """
    from foredraft.backends.llamacpp.quantize import default_name

    name = default_name(library.stem_of(src), type_name)
    folder = paths.models_dir()
    if src.absolute().is_relative_to(folder):
        return src.with_name(name)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"Cannot create {folder}: {error.strerror or error}.", hint="Name a file to write, with -o."
        ) from None
    return folder / name
