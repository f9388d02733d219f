"""`foredraft draft`: drafts for a model of one's own."""

from __future__ import annotations

import click

from foredraft.cli.lazy_group import LazyGroup

COMMANDS = {
    "make": ("foredraft.cli.draft_make:make", "Train a small head for a model from its own answers."),
    "list": ("foredraft.cli.draft_list:list_heads", "List the installed heads."),
    "remove": ("foredraft.cli.draft_list:remove", "Remove an installed head."),
    "find": ("foredraft.cli.draft_find:find", "Say what on this computer could draft for a model."),
    "score": ("foredraft.cli.draft_score:score", "Score a draft for a model: is it worth using here?"),
}
"""Each command's import path and help line."""


@click.group(cls=LazyGroup, lazy=COMMANDS)
def draft() -> None:
    """Judge drafts for a model of your own, and train one."""
