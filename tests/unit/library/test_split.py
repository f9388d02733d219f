from __future__ import annotations

from pathlib import Path

from foredraft.library.split import is_later_part, model_files, split_stem


def test_any_part_names_all_files() -> None:
    files = model_files(Path("/m/big-Q4_0-00002-of-00003.gguf"))
    assert [file.name for file in files] == [
        "big-Q4_0-00001-of-00003.gguf",
        "big-Q4_0-00002-of-00003.gguf",
        "big-Q4_0-00003-of-00003.gguf",
    ]
    assert all(file.parent == Path("/m") for file in files)


def test_other_files_are_alone() -> None:
    assert model_files(Path("small-1-of-2.gguf")) == (Path("small-1-of-2.gguf"),)
    assert split_stem("small-1-of-2") == "small-1-of-2"


def test_stem_and_first_part() -> None:
    assert split_stem("big-00001-of-00003") == "big"
    assert not is_later_part("big-00001-of-00003")
    assert is_later_part("big-00002-of-00003")
    assert not is_later_part("big")
