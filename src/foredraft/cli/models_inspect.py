"""`foredraft models inspect`: show the metadata of a model's file or folder."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.table import Table

from foredraft.cli import paths
from foredraft.cli.adapter_inspect import gguf_rows, peft_rows
from foredraft.cli.completion import complete_models
from foredraft.cli.model_summary import context_row, kind_of, summary_of, vision_of
from foredraft.cli.options import llama_library_option
from foredraft.cli.render import cell
from foredraft.cli.units import size_text
from foredraft.errors import printable
from foredraft.library import mmproj
from foredraft.library.fingerprint import fingerprint_of
from foredraft.library.heads import DIGITS
from foredraft.library.kinds import POOLING_TYPES
from foredraft.library.safetensors_file import SafetensorsSummary
from foredraft.registry import backend_for

if TYPE_CHECKING:
    from collections.abc import Mapping

    from foredraft.cli.model_summary import Summary


@click.command()
@click.argument("model", metavar="FILE", shell_complete=complete_models)
@click.option("--json", "as_json", is_flag=True, help="Print the whole header as JSON.")
@click.option("--tensors", is_flag=True, help="Also list every tensor.")
@llama_library_option
def inspect(model: str, *, as_json: bool, tensors: bool, llama_library: Path | None) -> None:
    """Show the metadata of a model file, or of a LoRA adapter, without loading it.

    FILE is a path, a folder of safetensors, or the name of a model that 'foredraft models list' shows.
    """
    adapter = peft_rows(Path(model).expanduser())
    if adapter is not None:
        click.echo(json.dumps(adapter, indent=2) if as_json else printable(model))
        if not as_json:
            Console().print(_rows_table(adapter))
        return
    path = paths.locate(model)
    summary = summary_of(path, llama_library)
    if as_json:
        click.echo(json.dumps(_summary_json(summary), indent=2))
        return
    click.echo(printable(str(summary.path)))
    Console().print(_rows_table(gguf_rows(summary) or _vision_rows(summary) or _summary_rows(summary)))
    if not summary.tensors:
        click.echo("\nThis file contains a vocabulary but no weights: it cannot generate text.")
        return
    click.echo()
    Console().print(_quantization_table(summary))
    if tensors:
        click.echo()
        Console().print(_tensor_table(summary))


def _vision_rows(summary: Summary) -> dict[str, str] | None:
    """The rows of a file of vision; None of another."""
    if isinstance(summary, SafetensorsSummary) or summary.architecture != mmproj.ARCHITECTURE:
        return None
    said: dict[str, Any] = dict(summary.metadata)
    width = said.get("clip.vision.projection_dim")
    return {
        "name": summary.name,
        "kind": "a vision file" + (f" for models {width:,} wide" if isinstance(width, int) else ""),
        "projector": str(said.get("clip.projector_type") or said.get("clip.vision.projector_type") or ""),
        "parameters": f"{summary.parameters:,}",
        "size": size_text(summary.size_bytes),
        "type": summary.file_type,
        "format": _format(summary),
        "hash": fingerprint_of(summary.path)[:DIGITS],
    }


def _summary_rows(summary: Summary) -> dict[str, str]:
    heads = f"{summary.head_count} (KV: {summary.kv_head_count or summary.head_count})"
    parts = f" in {len(summary.files)} files" if len(summary.files) > 1 else ""
    return {
        "name": summary.name,
        "kind": _kind(summary),
        "architecture": summary.architecture,
        "parameters": f"{summary.parameters:,}",
        "size": size_text(summary.size_bytes) + parts,
        "type": summary.file_type,
        "context length": context_row(summary),
        "layers": f"{summary.block_count}" if summary.block_count else "",
        "embedding": f"{summary.embedding_length:,}" if summary.embedding_length else "",
        "attention heads": heads if summary.head_count else "",
        "vocabulary": f"{summary.vocab_size:,} tokens ({summary.tokenizer or 'unknown kind'})",
        "chat template": "yes" if summary.has_chat_template else "no",
        "vision": _vision(summary),
        "format": _format(summary),
        "hash": fingerprint_of(summary.path)[:DIGITS],
        "hash of its norms": backend_for(summary.path).weights_hash(summary.path)[:DIGITS],
    }


def _rows_table(rows: Mapping[str, str]) -> Table:
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for label, value in rows.items():
        if value:
            table.add_row(label, cell(value))
    return table


def _kind(summary: Summary) -> str:
    """What it is for, with its pooling; "" if it generates."""
    kind = kind_of(summary.path)
    if kind in (None, "generative"):
        return ""
    if isinstance(summary, SafetensorsSummary):
        return str(kind)
    pooling = summary.metadata.get(f"{summary.architecture}.pooling_type")
    known = POOLING_TYPES.get(pooling) if isinstance(pooling, int) else None
    return f"{kind}, pooling {known}" if known else str(kind)


def _vision(summary: Summary) -> str:
    """The file that a GGUF sees images with, if it lies beside it."""
    found = vision_of(summary.path)
    return "" if found is None else f"images, by {found.name}"


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
        table.add_row(cell(kind), f"{share.tensors:,}", size_text(share.size_bytes), percent)
    return table


def _tensor_table(summary: Summary) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("tensor", overflow="fold")
    table.add_column("type")
    table.add_column("shape")
    table.add_column("size", justify="right", no_wrap=True)
    for tensor in summary.tensors:
        shape = " × ".join(str(length) for length in tensor.shape)
        table.add_row(cell(tensor.name), cell(tensor.type), shape, size_text(tensor.size_bytes))
    return table


def _summary_json(summary: Summary) -> dict[str, Any]:
    values = asdict(summary)
    values["path"] = str(summary.path)
    values["files"] = [str(file) for file in summary.files]
    for tensor in values["tensors"]:
        tensor.pop("path", None)
    values["hash"] = fingerprint_of(summary.path)
    values["hash_of_norms"] = backend_for(summary.path).weights_hash(summary.path)
    values["kind"] = kind_of(summary.path)
    vision = vision_of(summary.path)
    values["mmproj"] = None if vision is None else str(vision)
    return values | {"is_vocab_only": not summary.tensors, "is_split": len(summary.files) > 1}
