"""`foredraft draft find`: which models and heads on this computer could draft for a model."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.table import Table

from foredraft import library
from foredraft.backends.llamacpp import binding
from foredraft.cli import paths
from foredraft.cli.completion import complete_models
from foredraft.cli.loading import find_model
from foredraft.cli.options import llama_library_option
from foredraft.cli.render import cell
from foredraft.cli.units import size_text

if TYPE_CHECKING:
    from foredraft.engine.draft_choice import Candidate

FITS = {"fits": "[green]fits[/]", "translation": "[yellow]by translation[/]", "no": "no"}


@click.command()
@click.argument("model", shell_complete=complete_models)
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
@llama_library_option
def find(model: str, *, as_json: bool, llama_library: Path | None) -> None:
    """Say which models and heads on this computer could draft for MODEL, the best first, and why or why not.

    They are judged by their files, without loading them. How much a draft gains is what 'foredraft draft
    score' measures.
    """
    from foredraft.engine.draft_choice import Room, draft_models, heads

    binding.choose(llama_library)
    target, folder = find_model(model), paths.models_dir()
    stored = library.list_models(folder, paths.other_programs())
    found = [*heads(target, folder), *draft_models(target, stored, Room())]
    if as_json:
        click.echo(json.dumps([_json(one) for one in found], indent=2, ensure_ascii=False))
        return
    if not any(one.fits != "no" for one in found):
        click.echo("Nothing here could draft for it; 'auto' drafts without a draft model, too.\n")
    table = Table(box=None, header_style="bold", pad_edge=False)
    for title in ("draft", "", "size", "why"):
        table.add_column(title, overflow="fold", justify="right" if title == "size" else "left")
    for one in found:
        table.add_row(cell(one.name), FITS[one.fits], size_text(one.size_bytes), cell(one.why))
    Console().print(table)


def _json(candidate: Candidate) -> dict[str, Any]:
    return {**asdict(candidate), "path": str(candidate.path)}
