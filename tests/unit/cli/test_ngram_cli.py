"""`foredraft ngram build-static`: a file for ngram-cache from texts."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

import gguf_factory
from command_line import Command, Ran
from foredraft.cli import ngram
from foredraft.cli.ngram import read_pieces
from foredraft.config import Stage
from foredraft.engine.engine import Engine
from foredraft.errors import ConfigError
from foredraft.registry import create_drafter
from foredraft.testing import drafter_context, run_drafter

LINE = "print(index, add(index, index + 1))\n"


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "corpus.py"
    path.write_text(LINE * 20)
    return path


def build(command: Command, tiny: Path, *arguments: object) -> Ran:
    return command("ngram", "build-static", "--model", tiny, *arguments)


def test_building_and_using(foredraft: Command, tiny: Path, text: Path, tmp_path: Path) -> None:
    out = tmp_path / "code.bin"
    ran = build(foredraft, tiny, text, "-o", out)
    assert ran.code == 0, ran.err
    assert ran.out.startswith(f"{out}: ")
    assert " tokens of 1 text, " in ran.out
    assert f"--speculate 'ngram-cache:static={out}'" in ran.err
    for flags in (("--speculate", f"ngram-cache:static={out}"), ("--spec-type", "ngram-cache", "-lcs", out)):
        ran = foredraft("run", tiny, "Hello", "-t", 1, "-n", 4, "--no-remember", "--json", *flags)
        assert ran.code == 0, ran.err
        assert json.loads(ran.out)["speculation"]["configured"] == f"ngram-cache:static={out}"


def test_what_the_file_drafts(foredraft: Command, tiny: Path, text: Path, tmp_path: Path) -> None:
    out = tmp_path / "code.bin"
    assert build(foredraft, tiny, text, "-o", out).code == 0
    with Engine.load(tiny, threads=1, speculate="off", probe=False, remember=False) as engine:
        tokens = engine.model.tokenizer.encode(LINE)
        context = replace(drafter_context(), target=engine.model.info)
    # The line has no repetition at its beginning: what is drafted there can only come from the file.
    (first, *_) = run_drafter(
        create_drafter(Stage("ngram-cache", {"static": str(out)}), context), tokens, prompt=2
    )
    assert list(first.tokens[:2]) == tokens[2:4]
    assert not run_drafter(create_drafter(Stage("ngram-cache"), context), tokens[:4], prompt=2)


def test_several_texts_in_pieces(
    foredraft: Command, tiny: Path, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "other.txt"
    other.write_text("The quick brown fox\njumps over the lazy dog.\n" * 5)
    whole, cut = tmp_path / "whole.bin", tmp_path / "cut.bin"
    first = build(foredraft, tiny, text, other, "-o", whole)
    assert " tokens of 2 texts, " in first.out
    monkeypatch.setattr(ngram, "PIECE_BYTES", 64)
    second = build(foredraft, tiny, text, other, "-o", cut)
    tokens = [ran.out.partition(" from ")[2].partition(" tokens")[0] for ran in (first, second)]
    assert tokens[0] == tokens[1]


def test_the_model_is_needed_for_its_tokenizer_only(
    foredraft: Command, tiny: Path, text: Path, tmp_path: Path, own_cache: Path
) -> None:
    same = gguf_factory.tiny_llama(tmp_path / "same.gguf", seed=5)  # other weights, the same vocabulary
    for number, model in enumerate((tiny, same)):
        assert build(foredraft, model, text, "-o", tmp_path / f"{number}.bin").code == 0
    assert (tmp_path / "0.bin").read_bytes() == (tmp_path / "1.bin").read_bytes()
    kept = [file.name for file in own_cache.rglob("*.*")]
    assert all(name.startswith("opened-") for name in kept), "no probe was run, nothing was remembered"


def test_a_file_for_another_vocabulary(foredraft: Command, tiny: Path, text: Path, tmp_path: Path) -> None:
    other = gguf_factory.tiny_llama(tmp_path / "other.gguf", vocab=300)
    out = tmp_path / "other.bin"
    assert build(foredraft, other, text, "-o", out).code == 0
    ran = foredraft("run", tiny, "Hello", "-t", 1, "-n", 1, "--speculate", f"ngram-cache:static={out}")
    assert ran.code == 2
    assert "another vocabulary" in ran.err


def refused(ran: Ran, says: str) -> None:
    assert ran.code == 2, ran.err
    assert says in ran.err
    assert "Traceback" not in ran.err
    assert ran.out == ""


def test_an_output_that_exists(foredraft: Command, tiny: Path, text: Path, tmp_path: Path) -> None:
    out = tmp_path / "code.bin"
    out.write_bytes(b"precious")
    refused(build(foredraft, tiny, text, "-o", out), "Overwrite it with --force")
    assert out.read_bytes() == b"precious"
    assert build(foredraft, tiny, text, "-o", out, "--force").code == 0
    assert out.read_bytes() != b"precious"


def test_outputs_that_are_refused(foredraft: Command, tiny: Path, text: Path, tmp_path: Path) -> None:
    refused(build(foredraft, tiny, text, "-o", tmp_path), "is a folder")
    refused(build(foredraft, tiny, text, "-o", text, "--force"), "is one of the texts")
    assert text.read_text() == LINE * 20
    refused(build(foredraft, tiny, text, "-o", text / "x.bin"), "Cannot write")
    refused(build(foredraft, tiny, text), "Missing option")


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "There is no file"),
        (b"", "is empty"),
        (b" \n\n", "is empty"),
        (b"\xff\xfe\x00", "is not UTF-8 text"),
        (b"text\0with a zero", "is not UTF-8 text"),
        (b"GGUF\x03\x00\x00", "is not UTF-8 text"),
        (b"a", "too short"),
    ],
)
def test_texts_that_are_refused(
    foredraft: Command, tiny: Path, tmp_path: Path, content: bytes | None, says: str
) -> None:
    path, out = tmp_path / "bad.txt", tmp_path / "out.bin"
    if content is not None:
        path.write_bytes(content)
    refused(build(foredraft, tiny, path, "-o", out), says)
    assert not out.exists()


def test_a_folder_is_no_text(foredraft: Command, tiny: Path, text: Path, tmp_path: Path) -> None:
    refused(build(foredraft, tiny, tmp_path, "-o", tmp_path / "out.bin"), "is not a file")
    refused(build(foredraft, tiny, "-o", tmp_path / "out.bin"), "Missing argument")


def test_damage_far_into_a_text_leaves_nothing_behind(
    foredraft: Command, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ngram, "PIECE_BYTES", 64)
    path, out = tmp_path / "late.txt", tmp_path / "out.bin"
    path.write_bytes(LINE.encode() * 50 + b"\xff\n")
    refused(build(foredraft, tiny, path, "-o", out), "is not UTF-8 text")
    assert {file.name for file in tmp_path.iterdir()} == {"late.txt"}


def test_a_model_that_is_not_there(foredraft: Command, text: Path, tmp_path: Path) -> None:
    refused(build(foredraft, tmp_path / "none.gguf", text, "-o", tmp_path / "out.bin"), "There is no file")


def test_pieces_end_at_line_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ngram, "PIECE_BYTES", 16)
    path = tmp_path / "text.txt"
    content = "\ufeffeins\nzwei ä\n" + "ö" * 40 + "\nvier\nohne Ende"
    path.write_bytes(content.encode())
    pieces = list(read_pieces(path))
    assert "".join(pieces) == content[1:]  # less the byte order mark
    assert len(pieces) == 2
    assert all(piece.endswith("\n") for piece in pieces[:-1])
    with pytest.raises(ConfigError, match="cannot be read"):
        list(read_pieces(tmp_path))
