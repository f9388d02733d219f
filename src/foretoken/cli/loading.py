"""Loading an engine at the command line, with something to look at while it takes long."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape

from foretoken.cli.interrupt import HeldCtrlC
from foretoken.cli.paths import cache_dir
from foretoken.config import Speculation
from foretoken.engine.engine import Engine
from foretoken.registry import check_speculation


def load_engine(
    model: str | Path | None, speculation: Speculation, options: dict[str, Any], console: Console
) -> Engine:
    """`Engine.load` with a spinner on `console` (standard error) that says what is going on.

    Ctrl-C waits until the weights are loaded, since most of it happens in calls from native code; then it
    raises KeyboardInterrupt, and the engine is closed.
    """
    check_speculation(speculation)
    with console.status("Loading the model…") as status, HeldCtrlC() as ctrl_c:

        def progress(fraction: float) -> None:
            stopping = " Stopping; Ctrl-C again ends at once." if ctrl_c.pressed else ""
            status.update(f"Loading the model… {fraction:.0%}{stopping}")

        def notice(text: str) -> None:
            ctrl_c.release()
            status.update(text)

        engine = Engine.load(
            model,
            speculate=speculation,
            cache_dir=cache_dir(),
            progress=progress,
            notice=notice,
            **options,
        )
        if ctrl_c.pressed:
            engine.close()
    for note in engine.notes:
        console.print(f"[yellow]Note:[/] {escape(note)}", highlight=False, soft_wrap=True)
    return engine
