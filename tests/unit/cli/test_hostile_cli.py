"""A hostile environment: closed streams, a full disk, a cache that is none, numbers that crash libraries."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from command_line import Command
from foredraft.cli import run_command

FULL = Path("/dev/full")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("run",), "standard input is closed"),
        (("run", "-f", "-"), "standard input is closed"),
        (("chat",), "Standard input is closed"),
        (("forget",), "There is no terminal to ask on"),
    ],
)
def test_without_a_standard_input(
    arguments: tuple[str, ...],
    says: str,
    tiny: Path,
    own_cache: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Python sets it to None where the shell closed it (`<&-`)."""
    (own_cache / "history").parent.mkdir(exist_ok=True)
    (own_cache / "history").write_text("typed\n")
    monkeypatch.setattr(sys, "stdin", None)
    model = [str(tiny)] if arguments[0] == "chat" else ["-m", str(tiny)] if arguments[0] == "run" else []
    assert run_command([*arguments, *model]) == 2
    err = capsys.readouterr().err
    assert says in err
    assert "Internal error" not in err


def test_a_prompt_needs_no_standard_input(
    tiny: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    assert run_command(["run", str(tiny), "Hello", "-t", "1", "-n", "2"]) == 0
    assert capsys.readouterr().out


@pytest.mark.skipif(not FULL.exists(), reason="needs a device that is always full")
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_full_disk_is_no_bug_of_ours(unbuffered: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Buffered output fails when the process ends, other output at once."""
    monkeypatch.setenv("PYTHONUNBUFFERED", unbuffered)
    with FULL.open("wb") as full:
        ran = subprocess.run(
            [sys.executable, "-m", "foredraft", "models", "--help"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert ran.returncode == 1
    assert ran.stderr.count("The disk is full") == 1
    assert "Internal error" not in ran.stderr
    assert "Traceback" not in ran.stderr


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_reader_that_is_gone_is_told_nothing(unbuffered: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """`foredraft models --help | true`"""
    monkeypatch.setenv("PYTHONUNBUFFERED", unbuffered)
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-m", "foredraft", "models", "--help"]
    ran = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, text=True, check=False)
    os.close(write)
    assert (ran.returncode, ran.stderr) == (1, "")


@pytest.mark.parametrize("command", [("run", "-t"), ("models", "quantize", "m.gguf", "q4_0", "--threads")])
def test_more_threads_than_llama_cpp_has_room_for(foredraft: Command, command: tuple[str, ...]) -> None:
    """It writes past the end of its pool, which ended the process."""
    ran = foredraft(*command, 100_000)
    assert ran.code == 2
    assert "from 0 to 512" in ran.err


@pytest.mark.parametrize("number", ["nan", "inf", "-inf"])
def test_numbers_that_no_range_keeps_out(foredraft: Command, number: str) -> None:
    for arguments in (
        ("serve", "--prefix-cache-gb", number),
        ("run", "Hello", "-md", "small.gguf", "--draft-p-min", number),
    ):
        ran = foredraft(*arguments)
        assert ran.code == 2, arguments
        assert "not a finite number" in ran.err


def test_a_cache_that_is_a_file(foredraft: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "file"
    file.touch()
    for chosen in (str(file), "~nobody-of-this-name/cache"):
        monkeypatch.setenv("FOREDRAFT_CACHE", chosen)
        for arguments in (("models", "list"), ("forget", "--dry-run"), ("run", "Hello")):
            ran = foredraft(*arguments)
            assert ran.code == 2, ran.err
            assert chosen in ran.err
            assert "PosixPath" not in ran.err


def test_a_device_is_no_model(foredraft: Command) -> None:
    ran = foredraft("run", os.devnull, "Hello")
    assert ran.code == 2
    assert f"{os.devnull} is neither a file nor a folder" in ran.err


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no such pipes there")
def test_a_pipe_is_no_model_and_not_the_one_that_was_meant(foredraft: Command, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.gguf")
    ran = foredraft("run", "-m", tmp_path / "pipe.gguf", "Hello")
    assert ran.code == 2
    assert "pipe.gguf is neither a file nor a folder." in ran.err
    assert "Did you mean" not in ran.err


def test_one_token_is_not_tokens(foredraft: Command, tiny: Path) -> None:
    ran = foredraft("run", tiny, "Hello", "-t", 1, "-n", 1)
    assert ran.err.startswith("1 token · ")


@pytest.mark.parametrize(
    "arguments",
    [("caf\udce9",), ("-p", "caf\udce9"), ("Hi", "--system", "\udce9"), ("Hi", "--stop", "\udce9")],
)
def test_arguments_that_are_no_text(foredraft: Command, tiny: Path, arguments: tuple[str, ...]) -> None:
    """Bytes of the command line that are no UTF-8 come as half characters."""
    ran = foredraft("run", "-m", tiny, "-t", 1, "-n", 2, *arguments)
    assert ran.code == 2
    assert "not UTF-8 text" in ran.err


def test_a_question_beside_a_prompt_file_is_no_model(foredraft: Command, tiny: Path, tmp_path: Path) -> None:
    file = tmp_path / "bill.py"
    file.write_text("x = 1")
    for question in ("Rename the variable", "Rename the variable " * 500):
        assert "more than once" in foredraft("run", question, "-f", file).err
    assert "no model 'qwen'" in foredraft("run", "qwen", "-f", file).err
    spaced = tmp_path / "my models"
    spaced.mkdir()
    (spaced / "tiny.gguf").symlink_to(tiny)
    assert foredraft("run", spaced, "-f", file, "-t", 1, "-n", 1).code == 0


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no such pipes there")
def test_a_pipe_is_not_replaced_by_a_file(foredraft: Command, tiny: Path, tmp_path: Path) -> None:
    pipe, text = tmp_path / "pipe", tmp_path / "text"
    os.mkfifo(pipe)
    text.write_text("one two three one two three")
    ran = foredraft("ngram", "build-static", text, "-m", tiny, "--force", "-o", pipe)
    assert ran.code == 2
    assert "pipe is not a regular file" in ran.err
    assert pipe.is_fifo()


def test_a_record_that_cannot_be_written(
    foredraft: Command, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("foredraft.cli.bench_record.append_traces", refuse)
    ran = foredraft("run", tiny, "Hello", "-t", 1, "-n", 2, "--record", tmp_path / "x.jsonl")
    assert ran.code == 2
    assert "x.jsonl cannot be written: Permission denied." in ran.err


def test_a_misspelt_command_is_named(foredraft: Command) -> None:
    assert "Did you mean 'models'?" in foredraft("modles").err
    assert "Did you mean" not in foredraft("xyzzy").err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--replay", "shipped", "--limit", "2"), "--limit has no effect with --replay"),
        (("--replay", "shipped", "--threads", "2"), "--threads has no effect with --replay"),
        (("--replay", "shipped", "--record", "x"), "--record has no effect with --replay"),
        (("--record", "x", "--repeat", "2"), "--repeat has no effect with --record"),
        (("--record", "x", "--json", "y"), "--json has no effect with --record"),
    ],
)
def test_bench_ignores_nothing_in_silence(foredraft: Command, arguments: tuple[str, ...], says: str) -> None:
    ran = foredraft("bench", *arguments)
    assert ran.code == 2
    assert says in ran.err
