"""What a model thinks before it answers, set apart in front of the parser of its dialect."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal, NamedTuple

from foredraft.server.tools.deltas import Delta, DeltaLog, ReasoningDelta
from foredraft.server.tools.dialect import ToolParser, new_call_id
from foredraft.types import Place, Thinking

Spans = list[tuple[int, int]]

_WHITE: Final = " \t\n\r\v\f"
"""White space around thoughts, as in `bytes.strip`: the engine compares bytes (`sampling/thought.py`)."""


class PlainText:
    """See ToolParser: an answer without calls."""

    def __init__(self) -> None:
        self._log = DeltaLog(new_call_id)
        self._spans: Spans | None = None
        self._at = 0

    def feed(self, text: str) -> list[Delta]:
        """See ToolParser."""
        if text and self._spans is not None:
            self._spans.append((self._at, self._at + len(text)))
        self._at += len(text)
        self._log.text(text)
        return self._log.drain()

    def finish(self, *, cut: bool = False) -> list[Delta]:  # noqa: ARG002
        """See ToolParser."""
        return []

    def trace(self, spans: Spans) -> None:
        """See ToolParser."""
        self._spans = spans


class Piece(NamedTuple):
    """A piece of an answer, of its thought or not: characters `start` to `end` of all that was fed."""

    thought: bool
    text: str
    start: int
    end: int


class ThoughtSplitter:
    """Cuts the marks out of an answer's text while it comes, and trims the white space around the thought.
    The engine's places say where the thought is.

    `begun`: the prompt has opened the thought, and with `goes_on` begun it, too. `layout`: what may stand
    between the closing mark and the answer, besides white space.
    """

    def __init__(
        self, opening: str, closing: str, *, begun: bool, goes_on: bool = False, layout: str = ""
    ) -> None:
        self._opening = opening
        self._closing = closing
        self._layout = layout
        self._state: Literal["before", "lead", "inside", "gap", "answer"] = (
            "inside" if goes_on else "lead" if begun else "before"
        )
        self._text = ""
        self._at = 0

    def feed(self, text: str, place: Place) -> list[Piece]:
        """The pieces that are certain after more text, behind which the answer is at `place`."""
        self._text += text
        found: list[Piece] = []
        if self._state == "before" and place is not Place.BEFORE:
            self._begin(thinks=place is not Place.ANSWER)
        if self._state in ("lead", "inside"):
            self._think(found, place)
        if self._state == "gap" and self._close_gap():
            self._state = "answer"
        if self._state == "answer":
            self._take(len(self._text), found, thought=False)
        return found

    def finish(self, *, cut: bool = False) -> list[Piece]:
        """The rest. `cut`: the answer was cut off, so what may begin a mark is dropped."""
        found = self.feed("", Place.ENDING) if self._state in ("lead", "inside") else []
        mark = self._opening if self._state == "before" else self._closing
        kept = len(self._text) - (_begins(mark, self._text) if cut else 0)
        if self._state in ("before", "inside"):
            self._take(kept, found, thought=self._state == "inside")
        self._text = ""
        return found

    def _begin(self, *, thinks: bool) -> None:
        """It is certain whether the answer thinks."""
        self._state = "lead" if thinks else "answer"
        if thinks:
            before, mark, _ = self._text.partition(self._opening)
            self._skip(len(before) + len(mark))

    def _think(self, found: list[Piece], place: Place) -> None:
        """Show what is certainly in the thought. Its closing mark counts where the engine ends it."""
        if self._state == "lead":
            self._skip(len(self._text) - len(self._text.lstrip(_WHITE)))
            self._state = "inside" if self._text else "lead"
        thought, mark, _ = self._text.partition(self._closing)
        kept = len(thought.rstrip(_WHITE))
        if place is Place.ANSWER or (place is Place.ENDING and mark):
            self._take(kept, found, thought=True)
            self._skip(len(thought) - kept + len(mark))
            self._state = "gap"
        elif place is Place.INSIDE:
            begun = 0 if mark else _begins(self._closing, thought)
            self._take(len(thought[: len(thought) - begun].rstrip(_WHITE)), found, thought=True)

    def _close_gap(self) -> bool:
        """Skip what stands before the answer. Whether the answer begins."""
        self._skip(len(self._text) - len(self._text.lstrip(_WHITE)))
        if self._layout and self._text.startswith(self._layout):
            self._skip(len(self._layout))
            self._layout = ""
            return self._close_gap()
        return bool(self._text) and not (self._layout and self._layout.startswith(self._text))

    def _take(self, count: int, found: list[Piece], *, thought: bool) -> None:
        if count:
            found.append(Piece(thought, self._text[:count], self._at, self._at + count))
        self._skip(count)

    def _skip(self, count: int) -> None:
        self._text = self._text[count:]
        self._at += count


def _begins(mark: str, text: str) -> int:
    """How many characters at the end of the text may begin the mark."""
    for length in range(min(len(mark) - 1, len(text)), 0, -1):
        if mark.startswith(text[len(text) - length :]):
            return length
    return 0


class ThoughtParser:
    """See ToolParser. `inner` parses what follows the thought; `layout` as in `ThoughtSplitter`. `place`:
    where the engine says the answer is behind the text that is fed next.
    """

    def __init__(self, thinking: Thinking, inner: ToolParser, layout: str = "") -> None:
        self.place = Place.INSIDE if thinking.begun else Place.BEFORE
        self._splitter = ThoughtSplitter(
            thinking.opening,
            thinking.closing,
            begun=thinking.begun,
            goes_on=thinking.goes_on,
            layout=layout,
        )
        self._inner = inner
        self._spans: Spans | None = None
        self._inner_spans: Spans = []
        self._answer_at: int | None = None

    def feed(self, text: str) -> list[Delta]:
        """See ToolParser."""
        return self._given(self._splitter.feed(text, self.place))

    def finish(self, *, cut: bool = False) -> list[Delta]:
        """See ToolParser."""
        found = self._given(self._splitter.finish(cut=cut))
        found += self._inner.finish(cut=cut)
        self._note()
        return found

    def trace(self, spans: Spans) -> None:
        """See ToolParser."""
        self._spans = spans
        self._inner.trace(self._inner_spans)

    def _given(self, pieces: Sequence[Piece]) -> list[Delta]:
        found: list[Delta] = []
        for piece in pieces:
            if piece.thought:
                found.append(ReasoningDelta(piece.text))
                if self._spans is not None:
                    self._spans.append((piece.start, piece.end))
                continue
            if self._answer_at is None:
                self._answer_at = piece.start
            found += self._inner.feed(piece.text)
            self._note()
        return found

    def _note(self) -> None:
        """Count the answer's spans from where the text began."""
        begin = self._answer_at or 0
        if self._spans is not None:
            self._spans += [(begin + start, begin + end) for start, end in self._inner_spans]
        self._inner_spans.clear()
