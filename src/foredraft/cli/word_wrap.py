"""Word wrapping of text while it is generated."""

from __future__ import annotations

import re
from collections.abc import Callable

from rich.cells import cell_len

from foredraft.types import TARGET

FENCE = "```"
_PIECE = re.compile(r"\n|[^\S\n]+|\S+")
_TAB = 8


class WordWrap:
    """Passes a text on to `put(text, origin)` with line breaks before words that would exceed the margin.

    A word is held back until it is complete. `width` returns the current number of columns. Words longer than
    a line, wide letters, which can be broken anywhere, and code between ``` are passed on at once.
    """

    def __init__(self, width: Callable[[], int], put: Callable[[str, str], None]) -> None:
        self._width = width
        self._put = put
        self._column = 0
        self._spaces: list[tuple[str, str]] = []
        self._word: list[tuple[str, str]] = []
        self._line = ""  # its beginning, to recognise a code fence
        self._code = False
        self._torn = False  # the beginning of this word has been written

    def write(self, text: str, origin: str) -> None:
        """Write the next piece of the text, which may begin and end within a word."""
        for piece in _PIECE.findall(text):
            if piece == "\n":
                self._new_line(origin)
            elif piece.isspace():
                self._release()
                self._torn = False
                self._spaces.append((piece, origin))
            else:
                self._letters(piece, origin)
        if self._word and (self._code or self._torn or self._is_long()):
            self._release()
            self._torn = True

    def end(self) -> None:
        """End the text: write what is held back and finish the line."""
        self._release()
        self._drop_spaces()
        self._column, self._line, self._code, self._torn = 0, "", False, False

    def _letters(self, piece: str, origin: str) -> None:
        wide = cell_len(piece) > len(piece)
        for part in piece if wide else (piece,):
            self._word.append((part, origin))
            if cell_len(part) > len(part):
                self._release()

    def _is_long(self) -> bool:
        return sum(cell_len(part) for part, _ in self._word) >= self._width()

    def _new_line(self, origin: str) -> None:
        self._release()
        self._drop_spaces()
        if self._line.startswith(FENCE):
            self._code = not self._code
        self._put("\n", origin)
        self._column, self._line, self._torn = 0, "", False

    def _drop_spaces(self) -> None:
        """Write spaces at the end of a line, so that no character of the text is lost."""
        for spaces, origin in self._spaces:
            self._put(spaces, origin)
        self._spaces.clear()

    def _release(self) -> None:
        """Write the word that is held back, on this line or the next."""
        if not self._word:
            return
        gap = sum(self._cells(spaces) for spaces, _ in self._spaces)
        size, width = sum(cell_len(part) for part, _ in self._word), max(1, self._width())
        if self._column + gap + size <= width or self._code or self._torn or not self._column:
            self._drop_spaces()
            self._column += gap
        else:
            self._spaces.clear()
            self._put("\n", TARGET)
            self._column = 0
        for part, origin in self._word:
            self._put(part, origin)
            if len(self._line) < len(FENCE):
                self._line += part
        self._word.clear()
        self._column += size
        if self._column > width:  # the terminal has wrapped it
            self._column = (self._column - 1) % width + 1

    def _cells(self, spaces: str) -> int:
        return sum(_TAB if space == "\t" else max(1, cell_len(space)) for space in spaces)
