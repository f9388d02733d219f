"""The input line, typed into through a pipe that stands for the keyboard."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from prompt_toolkit.input import PipeInput, create_pipe_input
from prompt_toolkit.output import DummyOutput

from foredraft.cli.chat_prompt import PromptReader

ALT_ENTER = "\x1b\r"
CTRL_C = "\x03"
CTRL_D = "\x04"
UP = "\x1b[A"


@pytest.fixture
def keyboard() -> Iterator[PipeInput]:
    with create_pipe_input() as keyboard:
        yield keyboard


def reader(
    keyboard: PipeInput, history: Path | None = None, complaints: list[str] | None = None
) -> PromptReader:
    return PromptReader(
        history,
        ["help", "stats"],
        complain=pytest.fail if complaints is None else complaints.append,
        source=keyboard,
        output=DummyOutput(),
    )


def typed(keyboard: PipeInput, keys: str, history: Path | None = None) -> str:
    keyboard.send_text(keys)
    return reader(keyboard, history)()


@pytest.mark.parametrize(
    ("keys", "line"),
    [
        ("hello\r", "hello"),
        (f"one{ALT_ENTER}two\r", "one\ntwo"),
        ("one\\\rtwo\r", "one\ntwo"),
        (f"wrong{CTRL_C}right\r", "right"),
        ("/he\t\r", "/help"),
        ("\x1b[200~pasted\ntwice\x1b[201~\r", "pasted\ntwice"),
    ],
)
def test_keys(keyboard: PipeInput, keys: str, line: str) -> None:
    assert typed(keyboard, keys) == line


def test_ctrl_c_on_an_empty_line_interrupts(keyboard: PipeInput) -> None:
    with pytest.raises(KeyboardInterrupt):
        typed(keyboard, CTRL_C)


def test_ctrl_d_ends(keyboard: PipeInput) -> None:
    with pytest.raises(EOFError):
        typed(keyboard, CTRL_D)


def test_history_is_kept_from_session_to_session_and_private(keyboard: PipeInput, tmp_path: Path) -> None:
    history = tmp_path / "new" / "history"
    assert typed(keyboard, f"first{ALT_ENTER}line\r", history) == "first\nline"
    assert history.stat().st_mode & 0o777 == 0o600
    assert history.parent.stat().st_mode & 0o777 == 0o700
    assert typed(keyboard, f"{UP}\r", history) == "first\nline"


def test_a_history_others_can_read_is_made_private(keyboard: PipeInput, tmp_path: Path) -> None:
    history = tmp_path / "history"
    history.touch(mode=0o644)
    typed(keyboard, "hello\r", history)
    assert history.stat().st_mode & 0o777 == 0o600


def test_a_history_that_cannot_be_kept_is_said(keyboard: PipeInput, tmp_path: Path) -> None:
    complaints: list[str] = []
    keyboard.send_text("hello\r")
    assert reader(keyboard, tmp_path, complaints)() == "hello"
    assert len(complaints) == 1
    assert str(tmp_path) in complaints[0]


def test_a_history_that_vanishes_is_said(keyboard: PipeInput, tmp_path: Path) -> None:
    complaints: list[str] = []
    folder = tmp_path / "cache"
    read = reader(keyboard, folder / "history", complaints)
    (folder / "history").unlink()
    folder.rmdir()
    keyboard.send_text("hello\r")
    assert read() == "hello"
    assert len(complaints) == 1
