"""Loading an engine at the command line, with something to look at while it takes long."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape

from foretoken.cli.paths import cache_dir
from foretoken.config import Speculation
from foretoken.engine.engine import Engine
from foretoken.registry import check_speculation


def load_engine(
    model: str | Path | None, speculation: Speculation, options: dict[str, Any], console: Console
) -> Engine:
    """`Engine.load` with a spinner on `console` (standard error) that says what is going on."""
    check_speculation(speculation)
    with console.status("Loading the model…") as status:

        def progress(fraction: float) -> None:
            status.update(f"Loading the model… {fraction:.0%}")

        engine = Engine.load(
            model,
            speculate=speculation,
            cache_dir=cache_dir(),
            progress=progress,
            notice=status.update,
            **options,
        )
    for note in engine.notes:
        console.print(f"[yellow]Note:[/] {escape(note)}", highlight=False, soft_wrap=True)
    return engine
