"""`foredraft models search` and `pull`: find models on the Hugging Face Hub and download them."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.markup import escape
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
from foredraft.cli.render import stderr_console
from foredraft.cli.units import size_text
from foredraft.cli.values import Whole
from foredraft.errors import quoted

if TYPE_CHECKING:
    from foredraft.library.hub_search import FoundModel

MOST_VARIANTS = 4
"""Quantisations of a repository to show in the table."""


@click.command()
@click.argument("words", metavar="WORD…", nargs=-1, required=True)
@click.option(
    "--limit",
    metavar="N",
    type=Whole(1, 100),
    default=10,
    show_default=True,
    help="Show at most N models, the most downloaded first.",
)
@click.option("--safetensors", is_flag=True, help="Search for safetensors models, which run on PyTorch.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, with all quantisations and sizes.")
def search(words: tuple[str, ...], *, limit: int, safetensors: bool, as_json: bool) -> None:
    """Search the Hugging Face Hub for models by WORDs in their names.

    The size shown first is the one that 'foredraft models pull' downloads; others are listed after it.
    """
    query = " ".join(words)
    errors = stderr_console()
    with errors.status("Searching the Hub…"):
        found = library.search(
            query, limit=limit, safetensors=safetensors, endpoint=os.environ.get("HF_ENDPOINT") or None
        )
    if as_json:
        click.echo(json.dumps([_found_json(model) for model in found], indent=2))
        return
    if not found:
        kind = "safetensors" if safetensors else "GGUF files"
        click.echo(f"No model with {kind} on the Hub matches {quoted(query)}.")
        return
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("model", overflow="fold")
    table.add_column("downloads", justify="right", no_wrap=True)
    table.add_column("sizes", overflow="fold")
    for model in found:
        table.add_row(escape(model.repository), f"{model.downloads:,}", escape(", ".join(_sizes(model))))
    Console().print(table)
    click.echo("\nGet one: foredraft models pull OWNER/NAME[:QUANT]")


def _sizes(model: FoundModel) -> Iterator[str]:
    """The size of a pull, then some of the other quantisations."""
    if not model.variants:
        yield "gated: its owner gives access on request" if model.gated else "unknown"
    for variant in model.variants[:MOST_VARIANTS]:
        yield f"{variant.name} {size_text(variant.size_bytes)}"
    if len(model.variants) > MOST_VARIANTS:
        yield f"{len(model.variants) - MOST_VARIANTS} more"


def _found_json(model: FoundModel) -> dict[str, Any]:
    return asdict(model)


@click.command()
@click.argument("model", metavar="REPO[:QUANT]")
@click.option("--mmproj/--no-mmproj", default=True, help="With or without the vision file of a GGUF.")
def pull(model: str, *, mmproj: bool) -> None:
    """Download a model from the Hugging Face Hub: a GGUF file, or safetensors if there is none.

    REPO is OWNER/NAME, or its address on the Hub. QUANT is q4_k_m, q8_0, … or the name of a file; without it
    the usual one is downloaded. REPO:safetensors downloads the weights for PyTorch. A GGUF that
    sees images comes with its vision file (mmproj). The same command continues an interrupted download.
    """
    repository, quantization = library.parse_name(model)
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
        if not shown:  # not before the first bytes: an error may come instead
            bar.start()
            shown.append(bar.add_task(file, total=total))
        bar.update(shown[0], completed=done, total=total, description=file)

    try:
        path = library.pull(
            repository,
            quantization,
            folder=paths.models_dir(),
            mmproj=mmproj,
            progress=report,
            notice=lambda text: errors.print(text, markup=False, highlight=False, soft_wrap=True),
            endpoint=os.environ.get("HF_ENDPOINT") or None,
        )
    finally:
        if shown:
            bar.stop()
    click.echo(path)
