"""Loading an engine at the command line, with something to look at while it takes long."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape

from foredraft.cli.interrupt import HeldCtrlC
from foredraft.cli.paths import cache_dir
from foredraft.config import Speculation
from foredraft.registry import check_speculation

if TYPE_CHECKING:
    from foredraft.engine.engine import Engine


class _Spinner:
    """What is said while a model is loaded; also that Ctrl-C was heard, where it has to wait."""

    def __init__(self, ctrl_c: HeldCtrlC) -> None:
        self.text = "Loading the model…"
        self._ctrl_c = ctrl_c

    def __rich__(self) -> str:
        return self.text + (" Stopping; Ctrl-C again ends at once." if self._ctrl_c.pressed else "")


def load_engine(
    model: str | Path | None, speculation: Speculation, options: dict[str, Any], console: Console
) -> Engine:
    """`Engine.load` with a spinner on `console` (standard error) that says what is going on; see
    `load_engines`.
    """
    [engine] = load_engines(model, [speculation], options, console)
    return engine


def load_engines(
    model: str | Path | None,
    speculations: Sequence[Speculation],
    options: dict[str, Any],
    console: Console,
) -> list[Engine]:
    """`Engine.load_together` with a spinner on `console` (standard error) that says what is going on.

    Ctrl-C raises KeyboardInterrupt, and nothing stays loaded. While weights are read it waits until they
    report how far they are: that happens in calls from native code.
    """
    from foredraft.engine.engine import Engine  # takes longer than all else that a command imports
    from foredraft.engine.heap import freeze_heap

    for speculation in speculations:
        check_speculation(speculation)
    ctrl_c = HeldCtrlC()
    spinner = _Spinner(ctrl_c)
    with ctrl_c, console.status(spinner):

        def progress(fraction: float) -> None:
            ctrl_c.raise_pressed()
            spinner.text = f"Loading the model… {fraction:.0%}"

        def notice(text: str) -> None:
            ctrl_c.release()
            spinner.text = text

        engines = Engine.load_together(
            model, speculations, cache_dir=cache_dir(), progress=progress, notice=notice, **options
        )
        freeze_heap()
        if ctrl_c.pressed:
            for engine in engines:
                engine.close()
    for engine in engines:
        for note in engine.notes:
            console.print(f"[yellow]Note:[/] {escape(note)}", highlight=False, soft_wrap=True)
    return engines
