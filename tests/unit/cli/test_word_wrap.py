"""Lines break between words on a terminal, and nothing of the text is lost."""

from __future__ import annotations

import io
import random

import pytest
from rich.cells import cell_len
from rich.console import Console

from foredraft.cli.render import StreamPrinter
from foredraft.cli.word_wrap import WordWrap

TEXT = (
    "The quick brown fox jumps over the lazy dog and runs on.\n\n"
    "  1. an item that is indented and goes on over the margin\n"
    "trailing spaces   \nand\ta tab\n"
)


def wrapped(text: str, width: int, *, pieces: int = 0, seed: int = 0) -> str:
    """The text as it comes out, in pieces of up to so many letters; 0 for all at once."""
    out: list[str] = []
    wrap = WordWrap(lambda: width, lambda text, _: out.append(text))
    draw = random.Random(seed)
    at = 0
    while at < len(text):
        size = draw.randint(1, pieces) if pieces else len(text)
        wrap.write(text[at : at + size], "target")
        at += size
    wrap.end()
    return "".join(out)


def test_lines_break_between_words() -> None:
    assert wrapped("The quick brown fox jumps.", 10) == "The quick\nbrown fox\njumps."
    assert wrapped("12345 7890 x", 10) == "12345 7890\nx"
    assert wrapped("short", 80) == "short"


@pytest.mark.parametrize("width", [5, 12, 40, 80])
@pytest.mark.parametrize("seed", range(5))
def test_it_does_not_matter_in_what_pieces_it_comes(width: int, seed: int) -> None:
    whole = wrapped(TEXT, width)
    assert wrapped(TEXT, width, pieces=4, seed=seed) == whole
    assert whole.split() == TEXT.split()
    assert all(cell_len(line.rstrip().expandtabs()) <= width for line in whole.split("\n") if width >= 12)


def test_what_fits_is_as_it_was() -> None:
    assert wrapped(TEXT, 200) == TEXT
    assert wrapped(TEXT, 200, pieces=3) == TEXT


def test_a_word_longer_than_a_line_is_left_to_the_terminal() -> None:
    url = "https://example.org/" + "x" * 50
    for pieces in (0, 3):
        assert wrapped(f"See {url} for more of it", 20, pieces=pieces) == f"See\n{url} for more\nof it"


def test_code_is_left_as_it_is() -> None:
    code = "```python\nprint('a line of code that is longer than the terminal is wide')\n```\n"
    assert wrapped(f"Here:\n{code}and more words here", 20, pieces=3).startswith(
        f"Here:\n{code}and more words"
    )
    assert wrapped(f"{code}and more words than fit", 20) == f"{code}and more words than\nfit"


def test_letters_of_two_columns_break_anywhere() -> None:
    lines = wrapped("你好世界" * 5, 10).split("\n")
    assert "".join(lines) == "你好世界" * 5
    assert all(cell_len(line) <= 10 for line in lines)


def test_the_next_answer_begins_a_line() -> None:
    out: list[str] = []
    wrap = WordWrap(lambda: 10, lambda text, _: out.append(text))
    wrap.write("12345678", "target")
    wrap.end()
    out.clear()
    wrap.write("12345678 x", "target")
    wrap.end()
    assert "".join(out) == "12345678 x"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("out", "expected"), [(Terminal, "a b\nc\n"), (io.StringIO, "a b c\n")])
def test_only_a_terminal_gets_other_line_breaks(out: type[io.StringIO], expected: str) -> None:
    file = out()
    printer = StreamPrinter(Console(file=file, width=3, no_color=True))
    for piece in ("a", " b", " c"):
        printer.write(piece)
    printer.end()
    assert file.getvalue() == expected


def test_colours_stay_with_their_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    file = Terminal()
    printer = StreamPrinter(Console(file=file, width=8, force_terminal=True, color_system="standard"))
    printer.write("plain", "target")
    printer.write(" dra", "suffix")
    printer.write("ft.", "target")
    printer.end()
    assert file.getvalue() == "plain\n\x1b[32mdra\x1b[0mft.\n"
