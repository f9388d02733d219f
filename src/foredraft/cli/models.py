"""`foredraft models`: the models on this computer."""

from __future__ import annotations

import json
import os
import re
import warnings
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.table import Table

from foredraft import library
from foredraft.cli import paths
from foredraft.cli.interrupt import HeldCtrlC
from foredraft.cli.model_summary import summary_of
from foredraft.cli.render import stderr_console
from foredraft.cli.units import size_text
from foredraft.cli.values import Whole
from foredraft.config import MOST_THREADS
from foredraft.errors import ConfigError
from foredraft.library.repository import repository_of
from foredraft.library.safetensors_file import SafetensorsSummary
from foredraft.library.split import model_files

if TYPE_CHECKING:
    from foredraft.cli.model_summary import Summary
    from foredraft.library import StoredModel


@click.group()
def models() -> None:
    """See, get and convert models."""


# --- list ----------------------------------------------------------------------------------------------


@models.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
def list_command(as_json: bool) -> None:
    """List the models on this computer."""
    folder = paths.models_dir()
    found = library.list_models(folder)
    default = library.default_model()
    if as_json:
        click.echo(json.dumps([_model_json(model, default) for model in found], indent=2))
        return
    if not found:
        click.echo(f"There are no models in {folder}.\nGet one: foredraft models pull OWNER/NAME[:QUANT]")
        return
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("model", overflow="fold")
    table.add_column("quantization")
    table.add_column("size", justify="right", no_wrap=True)
    table.add_column("from")
    for model in found:
        note = " (default)" if model.path == default else "" if model.complete else " (incomplete)"
        table.add_row(model.name, model.quantization, size_text(model.size_bytes), model.source + note)
    _print(table)


def _model_json(model: StoredModel, default: Path | None) -> dict[str, Any]:
    values = asdict(model) | {"name": model.name, "path": str(model.path)}
    return values | {"default": model.path == default}


# --- inspect -------------------------------------------------------------------------------------------


@models.command()
@click.argument("model", metavar="FILE")
@click.option("--json", "as_json", is_flag=True, help="Print JSON: everything the header says.")
@click.option("--tensors", is_flag=True, help="List every tensor too.")
def inspect(model: str, as_json: bool, tensors: bool) -> None:
    """Show what a model file holds, without loading it.

    FILE is a path, a folder of safetensors, or the name of a model that 'foredraft models list' shows.
    """
    path = paths.locate(model)
    summary = summary_of(path)
    if as_json:
        click.echo(json.dumps(_summary_json(summary), indent=2))
        return
    click.echo(summary.path)
    _print(_summary_table(summary))
    if not summary.tensors:
        click.echo("\nThis file holds a vocabulary and no weights: it cannot generate text.")
        return
    click.echo()
    _print(_quantization_table(summary))
    if tensors:
        click.echo()
        _print(_tensor_table(summary))


def _summary_table(summary: Summary) -> Table:
    heads = f"{summary.head_count} (KV: {summary.kv_head_count or summary.head_count})"
    parts = f" in {len(summary.files)} files" if len(summary.files) > 1 else ""
    rows = {
        "name": summary.name,
        "architecture": summary.architecture,
        "parameters": f"{summary.parameters:,}",
        "size": size_text(summary.size_bytes) + parts,
        "type": summary.file_type,
        "context length": f"{summary.context_length:,}" if summary.context_length else "",
        "layers": f"{summary.block_count}" if summary.block_count else "",
        "embedding": f"{summary.embedding_length:,}" if summary.embedding_length else "",
        "attention heads": heads if summary.head_count else "",
        "vocabulary": f"{summary.vocab_size:,} tokens ({summary.tokenizer or 'unknown kind'})",
        "chat template": "yes" if summary.has_chat_template else "no",
        "format": _format(summary),
    }
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for label, value in rows.items():
        if value:
            table.add_row(label, value)
    return table


def _format(summary: Summary) -> str:
    if isinstance(summary, SafetensorsSummary):
        return "safetensors"
    return f"GGUF version {summary.version}"


def _quantization_table(summary: Summary) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("weights")
    for header in ("tensors", "size", "share"):
        table.add_column(header, justify="right")
    whole = sum(share.size_bytes for share in summary.quantization.values()) or 1
    for kind, share in summary.quantization.items():
        percent = f"{100 * share.size_bytes / whole:.1f} %"
        table.add_row(kind, f"{share.tensors:,}", size_text(share.size_bytes), percent)
    return table


def _tensor_table(summary: Summary) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("tensor", overflow="fold")
    table.add_column("type")
    table.add_column("shape")
    table.add_column("size", justify="right", no_wrap=True)
    for tensor in summary.tensors:
        shape = " × ".join(str(length) for length in tensor.shape)
        table.add_row(tensor.name, tensor.type, shape, size_text(tensor.size_bytes))
    return table


def _summary_json(summary: Summary) -> dict[str, Any]:
    values = asdict(summary)
    values["path"] = str(summary.path)
    values["files"] = [str(file) for file in summary.files]
    return values | {"is_vocab_only": not summary.tensors, "is_split": len(summary.files) > 1}


# --- quantize ------------------------------------------------------------------------------------------


@models.command()
@click.argument("source", metavar="SRC")
@click.argument("type_name", metavar="TYPE")
@click.option("-o", "--output", metavar="OUT", type=click.Path(path_type=Path), help="The file to write.")
@click.option("--force", is_flag=True, help="Overwrite OUT if it exists.")
@click.option("--allow-requantize", is_flag=True, help="Accept the loss of quantising twice.")
@click.option(
    "--threads",
    default=0,
    show_default="all cores",
    type=Whole(0, MOST_THREADS),
    help="Threads to use.",
)
def quantize(
    source: str, type_name: str, *, output: Path | None, force: bool, allow_requantize: bool, threads: int
) -> None:
    """Write SRC with its weights as TYPE (q4_0, q4_k_m, q8_0, …).

    SRC is a GGUF file or the name of one; without -o, the new file goes beside it.
    """
    from foredraft.backends.llamacpp.quantize import default_output
    from foredraft.backends.llamacpp.quantize import quantize as run

    src = paths.locate(source)
    if repository_of(src) is not None:
        raise ConfigError(
            f"{src} holds safetensors; only a GGUF can be quantised.",
            hint="Convert it first, with convert_hf_to_gguf.py of llama.cpp, or pull a GGUF of the model.",
        )
    dst = output or default_output(src, type_name)
    errors = stderr_console()
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed}/{task.total} tensors"),
        console=errors,
        transient=True,
        disable=not errors.is_terminal,
    )
    with HeldCtrlC() as ctrl_c, bar, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        task = bar.add_task("quantising", total=None)

        def report(done: int, total: int) -> None:
            stopping = "stopping after it; Ctrl-C again ends at once" if ctrl_c.pressed else "quantising"
            bar.update(task, completed=done, total=total, description=stopping)

        summary = run(
            src,
            dst,
            type_name,
            threads=threads,
            force=force,
            allow_requantize=allow_requantize,
            progress=report,
        )
    for warning in caught:
        click.echo(f"Note: {warning.message}", err=True)
    before = sum(file.stat().st_size for file in model_files(src))
    share = f"{100 * summary.size_bytes / before:.0f} %"
    click.echo(f"{dst}: {size_text(summary.size_bytes)}, {share} of {src.name}")


# --- pull ----------------------------------------------------------------------------------------------


@models.command()
@click.argument("model", metavar="REPO[:QUANT]")
def pull(model: str) -> None:
    """Download a model from the Hugging Face Hub: a GGUF, or safetensors where there is none.

    REPO is OWNER/NAME, or its address on the Hub. QUANT is q4_k_m, q8_0, … or the name of a file; without it
    the usual one is taken. REPO:safetensors takes the weights that run on PyTorch. When a download is
    interrupted, the same command continues it.
    """
    repository, _, quantization = _without_address(model).partition(":")
    errors = stderr_console()
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
        console=errors,
    )
    shown: list[TaskID] = []

    def report(done: int, total: int, file: str) -> None:
        if not shown:  # until then there may be an error to say instead
            bar.start()
            shown.append(bar.add_task(file, total=total))
        bar.update(shown[0], completed=done, total=total, description=file)

    try:
        path = library.pull(
            repository,
            quantization or None,
            folder=paths.models_dir(),
            progress=report,
            notice=lambda text: errors.print(text, markup=False, highlight=False, soft_wrap=True),
            endpoint=os.environ.get("HF_ENDPOINT") or None,
        )
    finally:
        if shown:
            bar.stop()
    click.echo(path)


def _without_address(model: str) -> str:
    """OWNER/NAME[:QUANT] of what is copied from the browser: https://huggingface.co/OWNER/NAME."""
    place = re.match(r"(?:https?://)?(?:www\.)?(?:huggingface\.co|hf\.co)/([^/]+/[^/?#]+)", model)
    return place[1] if place else model


# --- output --------------------------------------------------------------------------------------------


def _print(table: Table) -> None:
    Console().print(table)
