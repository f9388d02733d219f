"""What the project's former name kept is moved once, and used."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest

from foredraft.cache_folder import FORMER_NAME, default_cache_dir
from foredraft.drafters.suffix_store import SuffixStore


@pytest.fixture
def former(own_cache: Path) -> Path:
    folder = own_cache / FORMER_NAME
    (folder / "models" / "a").mkdir(parents=True)
    (folder / "models" / "a" / "b.gguf").write_bytes(b"GGUF")
    return folder


def test_a_former_folder_is_moved_once_with_one_line(former: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "foredraft"):
        folder = default_cache_dir()
        assert default_cache_dir() == folder
    assert (folder / "models" / "a" / "b.gguf").read_bytes() == b"GGUF"
    assert not former.exists()
    assert len(caplog.records) == 1
    assert "models moved from" in caplog.text


def test_what_is_there_already_is_not_replaced(former: Path, own_cache: Path) -> None:
    own = own_cache / "foredraft" / "models"
    own.mkdir(parents=True)
    (former / "history").write_text("hello")
    folder = default_cache_dir()
    assert (folder / "history").read_text() == "hello"
    assert list(own.iterdir()) == []
    assert (former / "models" / "a" / "b.gguf").exists()


def test_what_the_other_package_keeps_there_stays(former: Path) -> None:
    (former / "theirs.db").write_text("theirs")
    folder = default_cache_dir()
    assert (former / "theirs.db").read_text() == "theirs"
    assert [entry.name for entry in folder.iterdir()] == ["models"]


def test_past_outputs_and_profiles_of_the_former_name_are_used(former: Path) -> None:
    def store(folder: Path) -> SuffixStore:
        return SuffixStore(folder / "store", vocab_hash="v", vocab_size=100, scope="", max_tokens=1000)

    written = store(former)
    written.add([1, 2, 3])
    written.flush()
    written.path.write_bytes(written.path.read_bytes().replace(b"foredraft", FORMER_NAME.encode(), 1))
    (former / "profiles").mkdir()
    (former / "profiles" / "x.json").write_text(json.dumps({"format": f"{FORMER_NAME}-profile"}))
    folder = default_cache_dir()
    assert store(folder).load().tolist() != []
    assert json.loads((folder / "profiles" / "x.json").read_text())["format"] == "foredraft-profile"
