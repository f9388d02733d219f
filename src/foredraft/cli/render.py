"""Showing an answer as it comes: accepted draft tokens in their drafter's colour, and a closing line."""

from __future__ import annotations

import sys
from typing import TextIO

from rich.console import Console
from rich.style import Style

from foredraft.cli.units import counted
from foredraft.types import TARGET, Completion

PALETTE = ("green", "cyan", "magenta", "yellow", "blue", "bright_red")


class StreamPrinter:
    """Writes tokens to `out` as they come. Colours only where `console` has them, so pipes get plain text."""

    def __init__(self, console: Console, out: TextIO | None = None) -> None:
        self._out = out or console.file
        coloured = console.is_terminal and not console.no_color
        self._colours = console.color_system if coloured else None
        self._system = console._color_system
        self._styles: dict[str, Style] = {}
        self._last = ""

    def write(self, text: str, origin: str = TARGET) -> None:
        """Show a token's text at once."""
        if not text:
            return
        if self._colours and origin != TARGET:
            style = self._styles.get(origin)
            if style is None:
                style = self._styles[origin] = Style(color=PALETTE[len(self._styles) % len(PALETTE)])
            self._out.write(style.render(text, color_system=self._system))
        else:
            self._out.write(text)
        self._out.flush()
        self._last = text[-1]

    def end(self) -> None:
        """Finish the line."""
        if self._last != "\n":
            self._out.write("\n")
            self._out.flush()

    def legend(self) -> str:
        """Who has which colour, as rich markup; empty when nothing was coloured."""
        return "  ".join(f"[{style}]■ {name}[/]" for name, style in self._styles.items())


def closing_line(completion: Completion) -> str:
    """What the answer took and what speculation did, in one line."""
    timings, spec = completion.timings, completion.speculation
    parts = [counted(timings.predicted_n, "token"), f"{timings.predicted_ms / 1e3:.2f} s"]
    if timings.predicted_n > 1:
        parts.insert(0, f"{timings.predicted_per_second:.1f} tokens/s")
    if spec.acceptance_rate is not None:
        rate = f"{spec.acceptance_rate:.0%}".replace("%", " %")
        parts.append(f"drafted {timings.draft_n}, accepted {timings.draft_n_accepted} ({rate})")
        parts.append(f"acceptance length {spec.acceptance_length:.2f}")
    else:
        parts.append(f"nothing drafted: {spec.reason}" if spec.reason else "nothing drafted")
    parts.append("exact" if spec.exact else f"not exact: {spec.exact_reason}")
    return " · ".join(parts)


def stderr_console() -> Console:
    """Where everything but the answer goes."""
    return Console(file=sys.stderr, highlight=False)


def answer_console(*, colour: bool | None) -> Console:
    """Where the answer goes. `colour` None: as the terminal and NO_COLOR have it; otherwise as it says."""
    if colour is None:
        return Console(highlight=False)
    return Console(
        highlight=False,
        force_terminal=colour,
        no_color=not colour,
        color_system="standard" if colour else None,
    )
