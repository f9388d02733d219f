"""`foredraft draft`: drafts for a model of one's own."""

from __future__ import annotations

import click

from foredraft.cli.lazy_group import LazyGroup

COMMANDS = {
    "score": ("foredraft.cli.draft_score:score", "Score a draft for a model: is it worth using here?"),
}
"""Each command's import path and help line."""


@click.group(cls=LazyGroup, lazy=COMMANDS)
def draft() -> None:
    """Judge draft models for a model of your own."""
