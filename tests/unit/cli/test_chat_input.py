from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest

from foredraft.cli.chat_input import ReadLine, is_interactive, lines_of, open_input


def everything(read: ReadLine) -> list[str]:
    lines = []
    while True:
        try:
            lines.append(read())
        except EOFError:
            return lines


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("", []),
        ("one\ntwo\n", ["one", "two"]),
        ("one\r\n\ntwo", ["one", "", "two"]),
        ("one\\\ntwo\\\nthree\nfour\n", ["one\ntwo\nthree", "four"]),
        ("unfinished\\\n", ["unfinished"]),
        ("unfinished\\", ["unfinished"]),
    ],
)
def test_every_line_is_a_turn_and_a_backslash_joins(text: str, lines: list[str]) -> None:
    assert everything(lines_of(io.StringIO(text))) == lines


def test_a_pipe_needs_no_terminal(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"caf\xc3\xa9\nbad \xff byte\n"), "utf-8"))
    assert not is_interactive()
    assert everything(open_input(tmp_path / "history", [], pytest.fail)) == ["café", "bad \ufffd byte"]
    assert not (tmp_path / "history").exists()
