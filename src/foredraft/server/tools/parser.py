"""The parser shared by all dialects: a small state machine whose states are data of the dialect.

Text outside calls is shown at once, except for a possible start of a marker. Text that may be a call is held
back until it is one; otherwise it is returned as text, character for character. If the answer is cut off
before that is decided, it is not shown: it would be markup. A call that becomes malformed after it was
announced cannot be withdrawn from a client: its arguments end there and the rest follows as text. White space
alone before, between or after calls is layout, not text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from foredraft.server.tools.choice import Tool
from foredraft.server.tools.deltas import Delta, DeltaLog
from foredraft.server.tools.readers import CallReader, ReaderFactory

_SPACE: Final = re.compile(r"\s+")
TEXT: Final = "text"
AFTER: Final = "after"
BROKEN: Final = "broken"


@dataclass(frozen=True, slots=True)
class Layout:
    """The structure of an answer with calls.

    `steps[state]` maps the possible next literals to the next state, or to one of `readers`, which then reads
    a call from that literal on and leads to the state `AFTER`, or `BROKEN` if the call is malformed. The
    literal "" stands for anything else. White space between them is skipped. In the states `TEXT`, `BROKEN`
    and `reasoning` the literals are searched for and the text before them is shown, in the last as reasoning;
    in all other states, anything else is text. In the `quiet` states the text before them is known to be
    layout.
    """

    start: str
    steps: Mapping[str, Mapping[str, str]]
    readers: Mapping[str, ReaderFactory]
    reasoning: frozenset[str] = frozenset()
    quiet: frozenset[str] = frozenset({AFTER})

    def searched(self, state: str) -> bool:
        """Whether text is shown in this state while the literals are searched for."""
        return state in (TEXT, BROKEN) or state in self.reasoning


class CallParser:
    """Parses one answer by its layout. Only these functions can be called."""

    def __init__(self, layout: Layout, tools: Sequence[Tool], new_id: Callable[[], str]) -> None:
        self._layout = layout
        self._tools = {tool.name: tool for tool in tools}
        self._log = DeltaLog(new_id)
        self._state = layout.start
        self._reader: CallReader | None = None
        self._pending = ""
        self._at = 0
        self._held: list[str] = []  # taken but undecided: layout or text
        self._only_space = True  # since the start or the last call
        self._before = 0  # characters before those in `_pending`
        self._spans: list[tuple[int, int]] | None = None

    def trace(self, spans: list[tuple[int, int]]) -> None:
        """See ToolParser."""
        self._spans = spans

    def feed(self, text: str) -> list[Delta]:
        """The deltas that are certain after `text`."""
        self._before += self._at
        self._pending = self._pending[self._at :] + text
        self._at = 0
        while self._at < len(self._pending) and self._advance():
            pass
        return self._log.drain()

    def finish(self, *, cut: bool = False) -> list[Delta]:
        """End the answer: held-back text that is not a call is returned as text. `cut`: the answer was cut
        off, so held-back text is dropped as markup.
        """
        if self._reader is None:
            rest = self._rest(cut=cut)
            self._at = self._at if cut else len(self._pending)
            self._show(rest)
        elif self._reader.started:
            self._end_call(self._reader)
        elif not cut:
            self._say_text("".join(self._held))
        self._pending, self._at = "", 0
        self._held.clear()
        self._reader = None
        return self._log.drain()

    def _rest(self, *, cut: bool) -> str:
        """Held-back text outside a call."""
        held = "".join(self._held)
        rest = held if cut else held + self._pending[self._at :]
        searched = self._layout.searched(self._state)
        if cut and not searched:
            return ""
        layout = self._state in self._layout.quiet or (self._log.calls and searched and not rest.strip())
        return "" if layout else rest

    def _advance(self) -> bool:
        """Take one step. Returns False if more text is needed to decide."""
        if self._reader is not None:
            return self._read(self._reader)
        return self._search() if self._layout.searched(self._state) else self._match()

    # --- in a call -------------------------------------------------------------------------------------

    def _read(self, reader: CallReader) -> bool:
        begin = self._at
        self._at = reader.feed(self._pending, begin)
        if reader.started:
            self._held.clear()
        else:
            self._held.append(self._pending[begin : self._at])
        if reader.failed:
            self._reader = None
            if reader.started:
                self._end_call(reader)
                self._say_text(reader.unread)
            self._give_back(BROKEN if reader.started and BROKEN in self._layout.steps else TEXT)
        elif reader.done:
            self._reader = None
            self._end_call(reader)
            self._state = AFTER
        return reader.failed or reader.done

    def _end_call(self, reader: CallReader) -> None:
        if reader.complete:
            self._log.end()

    def _give_back(self, state: str = TEXT) -> None:
        """Return the held text as text, and continue in `state`."""
        self._state = state
        self._show("".join(self._held))
        self._held.clear()
        self._only_space = False

    def _show(self, text: str) -> None:
        """Show the text that ends where the parser is."""
        if self._state in self._layout.reasoning:
            self._note(text)
            self._log.reasoning(text)
        else:
            self._say_text(text)

    def _say_text(self, text: str) -> None:
        self._note(text)
        self._log.text(text)

    def _note(self, text: str) -> None:
        if self._spans is not None and text:
            end = self._before + self._at
            self._spans.append((end - len(text), end))

    # --- between calls ---------------------------------------------------------------------------------

    def _match(self) -> bool:
        steps = self._layout.steps[self._state]
        space = _SPACE.match(self._pending, self._at)
        if space:
            self._take(space.end())
        left = len(self._pending) - self._at
        if not left:
            return False
        for literal, target in steps.items():
            if literal and self._pending.startswith(literal, self._at):
                self._follow(literal, target)
                return True
        rest = self._pending[self._at :] if left < max(map(len, steps)) else None
        if rest is not None and any(literal.startswith(rest) for literal in steps):
            return False
        if "" in steps:
            self._follow("", steps[""])
        else:
            self._give_back()
        return True

    def _follow(self, literal: str, target: str) -> None:
        if target in self._layout.readers:
            self._reader = self._layout.readers[target](self._tools, self._log)
            return
        self._take(self._at + len(literal))
        self._state = target
        if self._layout.searched(target) or target in self._layout.quiet:
            self._held.clear()
            self._only_space = True

    def _take(self, end: int) -> None:
        self._held.append(self._pending[self._at : end])
        self._at = end

    # --- in text ---------------------------------------------------------------------------------------

    def _search(self) -> bool:
        if self._only_space:
            space = _SPACE.match(self._pending, self._at)
            if space:
                self._take(space.end())
        steps = self._layout.steps[self._state]
        found = [(self._pending.find(marker, self._at), marker) for marker in steps]
        found = [place for place in found if place[0] >= 0]
        if found:
            start, marker = min(found)
            self._say(start)
            self._follow(marker, steps[marker])
            return True
        self._say(len(self._pending) - _beginning_of(steps, self._pending, self._at))
        return False

    def _say(self, end: int) -> None:
        """Show the text up to `end`, and the layout before it, which was text too."""
        if end > self._at:
            self._take(end)
            self._give_back(self._state)


def _beginning_of(markers: Collection[str], text: str, at: int) -> int:
    """The number of characters at the end of `text` (after `at`) that may be the start of a marker."""
    longest = min(max(map(len, markers)) - 1, len(text) - at)
    for length in range(longest, 0, -1):
        tail = text[len(text) - length :]
        if any(marker.startswith(tail) for marker in markers):
            return length
    return 0
