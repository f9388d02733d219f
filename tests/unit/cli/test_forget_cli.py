"""`foredraft forget`: everything remembered of past texts goes, and nothing else."""

from __future__ import annotations

import io
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from command_line import Command
from foredraft.cli import run_command
from foredraft.drafters.suffix_store import SuffixStore
from foredraft.engine.prefix import file_format
from foredraft.engine.profile_store import Profile, ProfileKey, ProfileStore

KINDS = {
    "past outputs",
    "n-gram counts",
    "prefix cache",
    "typed lines",
    "answers that heads were made from",
}


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def memory(own_cache: Path) -> list[Path]:
    """One file of each kind that is remembered, leftovers of a crash, and much that must stay."""
    store = own_cache / "store"
    past = SuffixStore(store, vocab_hash="v", vocab_size=100, scope="", max_tokens=100)
    past.add([1, 2, 3])
    past.flush()
    counts = store / "ngram-cache-v.bin"
    leftover = past.path.with_name(past.path.name + ".tmp")
    history = own_cache / "history"
    prefix = (
        own_cache
        / "prefixes"
        / file_format.name_of(file_format.Identity(b"m" * 16, b"s" * 16), file_format.as_tokens([1, 2, 3]))
    )
    prefix.parent.mkdir()
    making = own_cache / "draft-make" / "0123456789abcdef" / "answers.jsonl"
    making.parent.mkdir(parents=True)
    for path in (counts, leftover, history, prefix, making):
        path.write_bytes(b"12345")
    for name in ("models/m.gguf", "probes/p.json", "store/notes.txt", "conversation.json", "prefixes/a.bin"):
        (own_cache / name).parent.mkdir(exist_ok=True)
        (own_cache / name).write_bytes(b"kept")
    return [past.path, leftover, counts, history, prefix, making]


def kept(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


STAYS = {"models/m.gguf", "probes/p.json", "store/notes.txt", "conversation.json", "prefixes/a.bin"}


def test_erasing(foredraft: Command, memory: list[Path], own_cache: Path) -> None:
    size = sum(path.stat().st_size for path in memory)
    ran = foredraft("forget", "--yes")
    assert (ran.code, ran.err) == (0, "")
    assert all(kind in ran.out for kind in KINDS)
    assert ran.out.endswith(f"Erased 6 files, {size} B.\n")
    assert kept(own_cache) == STAYS
    again = foredraft("forget")
    assert (again.code, again.out) == (0, f"Nothing is stored in {own_cache}.\n")


def test_a_head_that_is_not_installed_is_kept_and_named(
    foredraft: Command, memory: list[Path], own_cache: Path
) -> None:
    """It contains no text; what it was made from goes."""
    work = memory[-1].parent
    head = work / "head.gguf"
    head.write_bytes(b"head")
    (work / "rows").mkdir()
    (work / "rows" / "tokens.i32").write_bytes(b"text")
    asked = foredraft("forget", "--dry-run")
    assert f"Kept: {head}" in asked.out
    ran = foredraft("forget", "--yes")
    assert (ran.code, ran.err) == (0, "")
    assert f"Kept: {head}" in ran.out
    assert kept(own_cache) == {*STAYS, str(head.relative_to(own_cache))}
    assert not (work / "rows").exists()
    assert "Nothing is stored" in foredraft("forget").out


def test_only_looking(foredraft: Command, memory: list[Path], own_cache: Path) -> None:
    before = kept(own_cache)
    ran = foredraft("forget", "--dry-run", "--yes")
    assert ran.code == 0
    stored = memory[0].stat().st_size + 5
    assert f"past outputs: 2 files, {stored} B" in ran.out
    assert "n-gram counts: 1 file, 5 B" in ran.out
    assert "typed lines: 1 file, 5 B" in ran.out
    assert "prefix cache: 1 file, 5 B" in ran.out
    assert "Nothing was erased" in ran.out
    assert kept(own_cache) == before


def test_nobody_to_ask(foredraft: Command, memory: list[Path], own_cache: Path) -> None:
    ran = foredraft("forget", stdin=b"y\n")
    assert ran.code == 2
    assert "Add --yes" in ran.err
    assert all(path.exists() for path in memory)


@pytest.mark.parametrize(("answer", "erased"), [("y\n", True), ("n\n", False), ("\n", False)])
def test_asking(
    memory: list[Path],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    answer: str,
    erased: bool,
) -> None:
    monkeypatch.setattr(sys, "stdin", Terminal(answer))
    assert run_command(["forget"]) == 0
    assert [path.exists() for path in memory] == [not erased] * 6
    assert ("Nothing was erased." in capsys.readouterr().out) is not erased


def test_leaving_the_question(memory: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", Terminal(""))
    assert run_command(["forget"]) == 130
    assert all(path.exists() for path in memory)


def test_files_that_cannot_be_erased(
    foredraft: Command, memory: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: Path, missing_ok: bool = False) -> None:
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "unlink", refuse)
    ran = foredraft("forget", "--yes")
    assert ran.code == 1
    assert "Not everything could be erased" in ran.err
    assert "Traceback" not in ran.err
    assert "Erased" not in ran.out


def test_a_folder_that_cannot_be_read(foredraft: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(folder: Path) -> list[Path]:
        raise PermissionError(13, "Permission denied", str(folder))

    monkeypatch.setattr("foredraft.drafters.suffix_store.remembered", refuse)
    ran = foredraft("forget", "--yes")
    assert ran.code == 2
    assert "cannot be read: Permission denied" in ran.err


def test_what_a_run_remembered(foredraft: Command, tiny: Path, own_cache: Path) -> None:
    assert foredraft("run", tiny, "Hello", "-t", 1, "-n", 4, "--speculate", "suffix;ngram-cache").code == 0
    assert len(kept(own_cache / "store")) == 2
    assert "Erased 2 files" in foredraft("forget", "--yes").out
    assert kept(own_cache / "store") == set()


# --- profiles ------------------------------------------------------------------------------------------


@pytest.fixture
def profile(own_cache: Path) -> Path:
    """A stored profile."""
    store = ProfileStore(own_cache / "profiles")
    key = ProfileKey("abc", "fake", "cpu", "1", "f16")
    assert store.save(Profile(key=key, curve={64: {1: 5.0}}, measured_at=datetime(2026, 11, 21, tzinfo=UTC)))
    (own_cache / "profiles" / "notes.txt").write_text("kept")
    (path,) = store.folder.glob("*.json")
    return path


def test_profiles_stay_unless_asked_for(foredraft: Command, memory: list[Path], profile: Path) -> None:
    size = profile.stat().st_size
    ran = foredraft("forget", "--yes")
    assert ran.code == 0
    assert f"Not erased without --profiles: profiles of models: 1 file, {size} B." in ran.out
    assert profile.exists()
    assert not any(path.exists() for path in memory)
    ran = foredraft("forget", "--yes")
    assert ran.out.startswith("Nothing is stored in ")
    assert "--profiles" in ran.out
    assert profile.exists()


def test_erasing_profiles(foredraft: Command, memory: list[Path], profile: Path, own_cache: Path) -> None:
    shown = foredraft("forget", "--profiles", "--dry-run")
    assert "profiles of models: 1 file" in shown.out
    assert profile.exists()
    ran = foredraft("forget", "--profiles", "--yes")
    assert ran.code == 0
    assert "Erased 7 files" in ran.out
    assert kept(own_cache) == STAYS | {"profiles/notes.txt"}
    assert foredraft("forget", "--profiles").out == f"Nothing is stored in {own_cache}.\n"


def test_only_profiles_to_erase(foredraft: Command, profile: Path) -> None:
    assert foredraft("forget", "--profiles", "--yes").code == 0
    assert not profile.exists()
