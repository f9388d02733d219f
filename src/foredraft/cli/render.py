"""Shows an answer as it is generated: accepted draft tokens in their drafter's colour, and a closing line."""

from __future__ import annotations

import sys
from typing import TextIO

from rich.console import Console
from rich.markup import escape
from rich.style import Style

from foredraft.cli.units import counted
from foredraft.cli.word_wrap import WordWrap
from foredraft.errors import printable
from foredraft.types import TARGET, Completion, FinishReason, SpeculationStats

PALETTE = ("green", "cyan", "magenta", "yellow", "blue", "bright_red")

THOUGHT = "thought"
"""The origin of reasoning before the answer: it is shown dimmed, also where it was drafted."""

CLEARLY = 1.1
"""Speedups from this value on are shown as a factor, smaller ones in percent."""


class StreamPrinter:
    """Writes tokens to `out` as they come: in colour if `console` supports it, so pipes get plain text, and
    on a terminal wrapped at words.
    """

    def __init__(self, console: Console, out: TextIO | None = None, *, wrap: bool | None = None) -> None:
        self._out = out or console.file
        coloured = console.is_terminal and not console.no_color
        self._colours = console.color_system if coloured else None
        self._system = console._color_system
        self._styles: dict[str, Style] = {}
        self._last = ""
        wraps = self._out.isatty() if wrap is None else wrap
        self._wrap = WordWrap(lambda: console.width, self._put) if wraps else None

    def write(self, text: str, origin: str = TARGET) -> None:
        """Show a token's text at once; on a terminal as soon as its line is known."""
        if not text:
            return
        self._last = text[-1]
        if self._wrap is None:
            self._put(text, origin)
        else:
            self._wrap.write(text, origin)
        self._out.flush()

    def _put(self, text: str, origin: str) -> None:
        if self._colours and origin == THOUGHT:
            text = Style(dim=True).render(text, color_system=self._system)
        elif self._colours and origin != TARGET:
            style = self._styles.get(origin)
            if style is None:
                style = self._styles[origin] = Style(color=PALETTE[len(self._styles) % len(PALETTE)])
            text = style.render(text, color_system=self._system)
        self._out.write(text)

    def end(self) -> None:
        """Finish the line."""
        if self._wrap is not None:
            self._wrap.end()
        if self._last != "\n":
            self._out.write("\n")
        self._last = ""
        self._out.flush()

    def legend(self) -> str:
        """The colour of each drafter, as rich markup; empty if nothing was coloured."""
        return "  ".join(f"[{style}]■ {name}[/]" for name, style in self._styles.items())


def closing_line(completion: Completion, *, gain: bool = True, without: str = "") -> str:
    """Speed, token counts and speculation of an answer in one line. Without `gain` the estimated speedup is
    left out. `without` as in `ModelInfo`.
    """
    timings, spec = completion.timings, completion.speculation
    thought = completion.usage.reasoning_tokens
    written = counted(timings.predicted_n, "token") + (f", {thought:,} of them thought" if thought else "")
    parts = [written, f"{timings.predicted_ms / 1e3:.2f} s"]
    if timings.predicted_n > 1:
        parts.insert(0, f"{timings.predicted_per_second:.1f} tokens/s")
        if gain:
            parts.insert(1, gain_text(spec))
    if spec.acceptance_rate is not None:
        rate = f"{spec.acceptance_rate:.0%}".replace("%", " %")
        parts.append(f"drafted {timings.draft_n}, accepted {timings.draft_n_accepted} ({rate})")
        parts.append(f"acceptance length {spec.acceptance_length:.2f}")
    parts.append("exact" if spec.exact else f"not exact: {spec.exact_reason}")
    if without:
        parts.append(f"without {without}: foredraft doctor")
    return " · ".join(parts)


def gain_text(spec: SpeculationStats) -> str:
    """The estimated speedup over plain decoding, in words, or why there is none."""
    if spec.acceptance_rate is None:
        return f"plain speed (nothing drafted: {spec.reason})" if spec.reason else "plain speed"
    if spec.estimated_speedup is None:
        return "speedup unknown (too few plain rounds to compare with)"
    if spec.estimated_speedup == 1:
        return "no faster than plain (the difference is within noise)"
    return times_text(spec.estimated_speedup)


def times_text(speedup: float) -> str:
    """A speedup in words: the time of plain decoding divided by the time taken."""
    percent = round(100 * abs(speedup - 1))
    if percent == 0:
        return "as fast as plain"
    if speedup < 1:
        return f"{percent} % slower than plain"
    return f"{speedup:.1f}× faster" if speedup >= CLEARLY else f"{percent} % faster"


def ending_note(completion: Completion, room: int) -> str | None:
    """Why an answer ended before its own end, unless the user asked for that. `room`: the context length."""
    if completion.finish_reason is FinishReason.REPETITION:
        return (
            "The answer was stopped because it kept repeating itself; --no-stop-repetition lets it continue."
        )
    cut = completion.finish_reason is FinishReason.LENGTH
    used = completion.usage.prompt_tokens + completion.usage.completion_tokens
    if cut and used < room and completion.usage.reasoning_tokens == completion.usage.completion_tokens:
        return (
            "The model was still thinking when the answer had as many tokens as it may have: -n sets that "
            "number, --reasoning-budget how many of them it may think."
        )
    if cut and used >= room:
        return f"The answer was stopped because the context of {room:,} tokens is full."
    return None


def cell(text: str) -> str:
    """Escape a text from a file or its name for use in a table."""
    return escape(printable(text))


def stderr_console() -> Console:
    """The console for everything but the answer."""
    return Console(file=sys.stderr, highlight=False)


def answer_console(*, colour: bool | None) -> Console:
    """The console for the answer. `colour` None follows the terminal and NO_COLOR."""
    if colour is None:
        return Console(highlight=False)
    return Console(
        highlight=False,
        force_terminal=colour,
        no_color=not colour,
        color_system="standard" if colour else None,
    )
