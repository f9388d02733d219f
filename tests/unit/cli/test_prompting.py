"""Which word is the model, which the prompt, and where a prompt comes from."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest

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
    with pytest.raises(RequestError, match=r"Too many words: .*'c'") as caught:
        split_words(words, model=model, prompt_given=False)
    assert caught.value.hint is not None
    assert "quotes" in caught.value.hint


@pytest.mark.parametrize("word", ["请用三句话介绍一下自己" * 40, "a" * 5000, "~nobody-of-this-name", "a/b/c"])
def test_a_prompt_without_spaces_is_no_model(word: str) -> None:
    assert not names_a_model(word)


# --- where the prompt comes from -----------------------------------------------------------------------


def test_from_an_argument_or_option(monkeypatch: pytest.MonkeyPatch) -> None:
    pipe(monkeypatch, b"from the pipe")
    assert read_prompt("word", None, None) == "word"
    assert read_prompt(None, "option", None) == "option"


def test_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "prompt.txt"
    path.write_bytes("\ufeffZeile 1\r\nZwei: ü\n".encode())
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
    "given", [("a", "b", None), ("a", None, "-"), (None, "b", "-"), ("a", "b", "c"), ("", "", None)]
)
def test_more_than_one_prompt(given: tuple[str | None, str | None, str | None]) -> None:
    with pytest.raises(RequestError, match="more than once"):
        read_prompt(*given)


@pytest.mark.parametrize("empty", ["", " ", "\n\t"])
def test_an_empty_prompt(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, empty: str) -> None:
    path = tmp_path / "empty.txt"
    path.write_text(empty)
    pipe(monkeypatch, empty.encode())
    for given in ((empty, None, None), (None, empty, None), (None, None, "-"), (None, None, str(path))):
        with pytest.raises(RequestError, match="is empty"):
            read_prompt(*given)


@pytest.mark.parametrize("errors", ["strict", "surrogateescape"])
def test_a_pipe_that_is_no_text(monkeypatch: pytest.MonkeyPatch, errors: str) -> None:
    pipe(monkeypatch, b"\xff\xfe\x00", errors=errors)
    with pytest.raises(RequestError, match="not UTF-8"):
        read_prompt(None, None, None)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    binary = tmp_path / "binary"
    binary.write_bytes(b"\xff\xfe\x00")
    for path, says in ((tmp_path / "none", "No such file"), (tmp_path, "directory"), (binary, "not UTF-8")):
        with pytest.raises(RequestError, match=says) as caught:
            read_text(path, "prompt file")
        assert f"prompt file {path}" in caught.value.message
