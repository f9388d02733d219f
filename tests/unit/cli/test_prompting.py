"""Which word is the model, which the prompt, and where a prompt comes from."""

from __future__ import annotations

import errno
import io
import os
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from foredraft.cli import prompting
from foredraft.cli.prompting import names_a_model, read_prompt, read_text, split_words
from foredraft.errors import RequestError


@pytest.fixture
def pulled(own_cache: Path) -> Path:
    """A model named "Parrot-Q4_0" in the models folder."""
    path = own_cache / "models" / "Parrot-Q4_0.gguf"
    path.parent.mkdir()
    path.write_bytes(b"GGUF")
    return path


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def pipe(
    monkeypatch: pytest.MonkeyPatch, data: bytes, encoding: str = "utf-8", errors: str = "strict"
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data), encoding=encoding, errors=errors))


# --- words ---------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("pulled")
@pytest.mark.parametrize(
    ("words", "prompt_given", "expected"),
    [
        ((), False, (None, None)),
        (("Tell me a joke",), False, (None, "Tell me a joke")),
        (("Hello",), False, (None, "Hello")),
        (("",), False, (None, "")),
        (("m.gguf",), False, ("m.gguf", None)),
        (("no/such/M.GGUF",), False, ("no/such/M.GGUF", None)),
        (("parrot-q4_0",), False, ("parrot-q4_0", None)),
        (("parrot",), False, ("parrot", None)),
        (("parrot talk",), False, (None, "parrot talk")),
        (("anything",), True, ("anything", None)),
        (("parrot", "Hello"), False, ("parrot", "Hello")),
        (("Hello", "parrot"), False, ("Hello", "parrot")),
    ],
)
def test_words(words: tuple[str, ...], prompt_given: bool, expected: tuple[str | None, str | None]) -> None:
    assert split_words(words, model=None, prompt_given=prompt_given) == expected


def test_words_beside_the_model_option() -> None:
    assert split_words(("m.gguf",), model="other.gguf", prompt_given=False) == ("other.gguf", "m.gguf")
    assert split_words((), model="other.gguf", prompt_given=True) == ("other.gguf", None)


@pytest.mark.parametrize(("words", "model"), [(("a", "b", "c"), None), (("b", "c"), "a")])
def test_too_many_words(words: tuple[str, ...], model: str | None) -> None:
    with pytest.raises(RequestError, match=r"Too many arguments: .*c\.") as caught:
        split_words(words, model=model, prompt_given=False)
    assert caught.value.hint is not None
    assert "quotes" in caught.value.hint


@pytest.mark.parametrize("word", ["请用三句话介绍一下自己" * 40, "a" * 5000, "~nobody-of-this-name", "a/b/c"])
def test_a_prompt_without_spaces_is_no_model(word: str) -> None:
    assert not names_a_model(word)


# --- where the prompt comes from -----------------------------------------------------------------------


def test_from_an_argument_or_option(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", Terminal("typed"))
    assert read_prompt("word", None, None) == "word"
    assert read_prompt(None, "option", None) == "option"


def test_a_pipe_comes_before_what_else_is_given(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "prompt.txt"
    path.write_text("What is it?\n")
    for given, asked in (
        (("What?", None, None), "What?"),
        (("What?", None, "-"), "What?"),
        ((None, "What?", None), "What?"),
        ((None, "What?", "-"), "What?"),
        ((None, None, str(path)), "What is it?\n"),
    ):
        pipe(monkeypatch, b"\nThe secret word is kiwi.\n\n")
        assert read_prompt(*given) == f"The secret word is kiwi.\n\n{asked}"


@pytest.mark.parametrize("data", [b"", b"\n\n"])
def test_an_empty_pipe_adds_nothing(monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    pipe(monkeypatch, data)
    assert read_prompt("What?", None, None) == "What?"


@pytest.mark.parametrize("argument", [None, "What?"])
def test_a_pipe_without_end_is_not_read_to_it(monkeypatch: pytest.MonkeyPatch, argument: str | None) -> None:
    class Endless(io.RawIOBase):
        def readable(self) -> bool:
            return True

        def readinto(self, buffer: Any) -> int:
            buffer[:] = b"y" * len(buffer)
            return len(buffer)

    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BufferedReader(Endless())))
    with pytest.raises(RequestError, match="larger than 8 MiB"):
        read_prompt(argument, None, None)


def test_a_pipe_that_nobody_ends_is_told_of(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    reading, writing = os.pipe()
    threading.Timer(1.0, os.close, [writing]).start()
    monkeypatch.setattr(prompting, "PATIENCE_S", 0.05)
    with os.fdopen(reading) as stream:
        monkeypatch.setattr(sys, "stdin", stream)
        assert read_prompt("What?", None, None) == "What?"
    assert "< /dev/null" in capsys.readouterr().err


def test_a_folder_as_standard_input(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with io.TextIOWrapper(io.BufferedReader(Folder())) as stream:
        monkeypatch.setattr(sys, "stdin", stream)
        with pytest.raises(RequestError, match="Cannot read standard input: Is a directory"):
            read_prompt("What?", None, None)


class Folder(io.RawIOBase):
    """What a shell opens for `< FOLDER`."""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))


def test_from_a_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "prompt.txt"
    path.write_bytes("\ufeffZeile 1\r\nZwei: ü\n".encode())
    for stdin in (None, Terminal("typed")):
        monkeypatch.setattr(sys, "stdin", stdin)
        assert read_prompt(None, None, str(path)) == "Zeile 1\nZwei: ü\n"


@pytest.mark.parametrize("file", [None, "-"])
def test_from_a_pipe(monkeypatch: pytest.MonkeyPatch, file: str | None) -> None:
    pipe(monkeypatch, "\ufeffüber\r\nall\n".encode(), encoding="latin-1")
    assert read_prompt(None, None, file) == "über\nall\n"


def test_from_a_stream_without_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("text"))
    assert read_prompt(None, None, None) == "text"


def test_typed_at_a_terminal_only_when_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", Terminal("typed"))
    with pytest.raises(RequestError, match="There is no prompt"):
        read_prompt(None, None, None)
    assert read_prompt(None, None, "-") == "typed"


@pytest.mark.parametrize(
    "given", [("a", "b", None), ("a", None, "c"), (None, "b", "c"), ("a", "b", "c"), ("", "", None)]
)
def test_more_than_one_prompt(given: tuple[str | None, str | None, str | None]) -> None:
    with pytest.raises(RequestError, match="more than once"):
        read_prompt(*given)


@pytest.mark.parametrize("empty", ["", " ", "\n\t"])
def test_an_empty_prompt(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, empty: str) -> None:
    path = tmp_path / "empty.txt"
    path.write_text(empty)
    for given in ((empty, None, None), (None, empty, None), (None, None, "-"), (None, None, str(path))):
        pipe(monkeypatch, empty.encode())
        with pytest.raises(RequestError, match="is empty"):
            read_prompt(*given)


@pytest.mark.parametrize("errors", ["strict", "surrogateescape"])
@pytest.mark.parametrize("data", [b"\xff\xfe\x00", b"\x7fELF\x00\x00"])
@pytest.mark.parametrize("argument", [None, "What?"])
def test_a_pipe_that_is_no_text(
    monkeypatch: pytest.MonkeyPatch, errors: str, data: bytes, argument: str | None
) -> None:
    pipe(monkeypatch, data, errors=errors)
    with pytest.raises(RequestError, match="not UTF-8"):
        read_prompt(argument, None, None)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    binary = tmp_path / "binary"
    binary.write_bytes(b"\xff\xfe\x00")
    for path, says in ((tmp_path / "none", "No such file"), (tmp_path, "directory"), (binary, "not UTF-8")):
        with pytest.raises(RequestError, match=says) as caught:
            read_text(path, "prompt file")
        assert f"prompt file {path}" in caught.value.message
