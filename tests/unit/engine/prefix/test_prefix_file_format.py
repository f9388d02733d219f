"""The file of a prefix: what was written comes back, and whatever else is there is refused."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from foredraft.engine.prefix import file_format
from foredraft.engine.prefix.file_format import MAGIC, VERSION, Identity, UnusableError

WHO = Identity(file_format.digest("model"), file_format.digest("alice"))
TOKENS = file_format.as_tokens(range(100))
CELLS = bytes(range(256)) * 3


def content(cells: bytes = CELLS) -> bytes:
    return bytes(file_format.finish(bytearray(cells), WHO, TOKENS))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / file_format.name_of(WHO, TOKENS)
    file.write_bytes(content())
    return file


def test_what_was_written_comes_back(path: Path) -> None:
    header = file_format.read_header(path)
    assert header.identity == WHO
    assert header.bytes == len(CELLS)
    assert np.array_equal(header.tokens, TOKENS)
    assert file_format.read(path, WHO, TOKENS) == CELLS


def test_cells_are_appended_to_where_they_are() -> None:
    cells = bytearray(CELLS)
    assert file_format.finish(cells, WHO, TOKENS) is cells


def test_a_scope_is_not_in_the_file_or_its_name(path: Path) -> None:
    assert b"alice" not in path.read_bytes()
    assert "alice" not in path.name


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(at=st.integers(0, len(content()) - 1), bit=st.integers(0, 7))
def test_no_bit_may_differ(path: Path, at: int, bit: int) -> None:
    damaged = bytearray(content())
    damaged[at] ^= 1 << bit
    path.write_bytes(damaged)
    with pytest.raises(UnusableError):
        file_format.read(path, WHO, TOKENS)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(length=st.integers(0, len(content()) - 1))
def test_no_byte_may_be_missing(path: Path, length: int) -> None:
    path.write_bytes(content()[:length])
    with pytest.raises(UnusableError):
        file_format.read_header(path)


def test_no_byte_may_be_extra(path: Path) -> None:
    for data in (b"x" + content(), content() + b"x"):
        path.write_bytes(data)
        with pytest.raises(UnusableError):
            file_format.read_header(path)


def test_another_version_says_so(path: Path) -> None:
    tail = len(MAGIC) + struct.calcsize("<IIQ16s16sII")
    data = bytearray(content())
    at = len(data) - tail + len(MAGIC)
    data[at : at + 4] = struct.pack("<I", VERSION + 1)
    path.write_bytes(data)
    with pytest.raises(UnusableError, match=f"has version {VERSION + 1} of the format; this reads {VERSION}"):
        file_format.read_header(path)


@pytest.mark.parametrize(
    ("identity", "tokens"),
    [
        (Identity(WHO.model, file_format.digest("bob")), TOKENS),
        (Identity(file_format.digest("another"), WHO.scope), TOKENS),
        (WHO, TOKENS[:-1]),
        (WHO, TOKENS[::-1]),
    ],
)
def test_it_is_read_only_as_what_it_is(path: Path, identity: Identity, tokens: file_format.Tokens) -> None:
    with pytest.raises(UnusableError, match="another prefix"):
        file_format.read(path, identity, tokens)


def test_only_our_files_are_listed_and_erased(path: Path) -> None:
    folder = path.parent
    left = folder / f".{path.name}.abc123_x"
    others = [folder / "notes.txt", folder / "prefix-1.bin", folder / f"{path.name}.old"]
    for file in (left, *others):
        file.write_bytes(b"x")
    (folder / ("prefix-" + "-".join(["0" * 16] * 3) + ".bin")).mkdir()
    assert file_format.files(folder) == file_format.files(folder, WHO.model) == [path]
    assert file_format.files(folder, file_format.digest("another")) == []
    assert file_format.remembered(folder) == [path, left]
    file_format.forget(folder)
    assert not path.exists()
    assert not left.exists()
    assert all(file.exists() for file in others)


def test_a_folder_that_is_not_there_is_empty(tmp_path: Path) -> None:
    assert file_format.remembered(tmp_path / "none") == []
    file_format.forget(tmp_path / "none")
