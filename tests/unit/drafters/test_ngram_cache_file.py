from __future__ import annotations

import stat
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from foredraft.drafters import ngram_cache_file
from foredraft.drafters.ngram_cache_file import (
    DYNAMIC,
    HEADER,
    STATIC,
    TOP,
    CountTable,
    Stored,
    UnusableFileError,
    build_static,
    load,
    pairs_of,
    save,
)
from foredraft.drafters.ngram_index import MASK, window_keys
from foredraft.errors import ConfigError

VOCABULARY = 1000
SECRET = bytes(range(16))


def key_of(window: Sequence[int]) -> int:
    return int(window_keys(window, len(window))[-1])


def table_of(tokens: Sequence[int], n: int = 2, limit: int = 1000) -> CountTable:
    table = CountTable(limit)
    table.add(pairs_of(tokens, n, 0, 0))
    return table


@given(
    st.lists(st.lists(st.integers(0, 3), max_size=30), max_size=4),
    st.integers(1, 4),
    st.integers(0, 6),
    st.integers(0, MASK),
)
def test_counts_what_follows(streams: list[list[int]], n: int, first: int, salt: int) -> None:
    table = CountTable(10_000)
    expected: Counter[tuple[tuple[int, ...], int]] = Counter()
    for stream in streams:
        table.add(pairs_of(stream, n, salt, first))
        expected.update((tuple(stream[at - n : at]), stream[at]) for at in range(max(first, n), len(stream)))
    assert len(table) == len(expected)
    for window in {window for window, _ in expected}:
        found, total = table.lookup((key_of(window) + salt) & MASK)
        assert found == {token: times for (known, token), times in expected.items() if known == window}
        assert total == sum(found.values())


def test_an_unknown_ngram_has_no_counts() -> None:
    assert table_of([1, 2, 3]).lookup(key_of([3, 4])) == ({}, 0)
    assert CountTable(10).lookup(5) == ({}, 0)


def test_of_many_next_tokens_the_most_frequent_are_given_with_the_sum_of_all() -> None:
    tokens = [token for next_token in range(2, 52) for token in [1, next_token] * (next_token % 25 + 1)]
    table = table_of(tokens, n=1)
    counts = Counter(after for before, after in pairwise(tokens) if before == 1)
    for _ in range(2):  # the second answer is a remembered one
        found, total = table.lookup(key_of([1]))
        assert len(found) == TOP
        assert sorted(found.values()) == sorted(counts.values())[-TOP:]
        assert total == sum(counts.values())
    table.add(pairs_of([1, 2] * 99, 1, 0, 0))
    assert table.lookup(key_of([1]))[0][2] == counts[2] + 99


def test_a_full_table_drops_the_rarest_and_keeps_the_latest_of_equals() -> None:
    table = CountTable(80)
    table.add(pairs_of([1, 2, 1, 2, 1], 1, 0, 0))
    table.add(pairs_of(list(range(100, 170)), 1, 0, 0))
    table.add(pairs_of(list(range(200, 230)), 1, 0, 0))
    assert len(table) == 70
    assert table.lookup(key_of([1])) == ({2: 2}, 2)
    assert all(table.lookup(key_of([token]))[1] == 1 for token in range(200, 229))


def test_counts_stop_at_the_largest_one() -> None:
    largest = np.iinfo(np.uint32).max
    pairs = pairs_of([1, 2], 1, 0, 0)
    table = CountTable(10, pairs, np.array([largest - 1], dtype=np.uint32))
    for _ in range(3):
        table.add(pairs)
    assert table.lookup(key_of([1])) == ({2: largest}, largest)


def test_what_was_saved_is_loaded(tmp_path: Path) -> None:
    path = tmp_path / "new folder" / "cache.bin"
    table = table_of([1, 2, 3, 1, 2, 3, 1, 2, 4])
    save(Stored(DYNAMIC, table, SECRET), path, "vocabulary")
    stored = load(path, DYNAMIC, "vocabulary", VOCABULARY)
    assert stored.secret == SECRET
    assert stored.table.lookup(key_of([1, 2])) == ({3: 2, 4: 1}, 3)
    stored.table.add(pairs_of([1, 2, 4], 2, 0, 0))  # not read-only
    assert stored.table.lookup(key_of([1, 2])) == ({3: 2, 4: 2}, 4)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert list(path.parent.iterdir()) == [path]


def test_a_failed_save_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "cache.bin"
    save(Stored(DYNAMIC, table_of([1, 2, 3]), SECRET), path, "vocabulary")
    before = path.read_bytes()

    def full(descriptor: int) -> None:
        raise OSError("no space left")

    monkeypatch.setattr("foredraft.drafters.ngram_cache_file.os.fsync", full)
    with pytest.raises(OSError, match="no space"):
        save(Stored(DYNAMIC, table_of([4, 5, 6]), SECRET), path, "vocabulary")
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("damage", ["payload", "counts", "cut", "longer", "size", "header"])
def test_a_damaged_file_is_recognised(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "cache.bin"
    save(Stored(DYNAMIC, table_of([1, 2, 3, 4]), SECRET), path, "vocabulary")
    content = bytearray(path.read_bytes())
    if damage == "payload":
        content[HEADER.size] ^= 1
    elif damage == "counts":
        content[-1] ^= 1
    elif damage == "cut":
        del content[-1]
    elif damage == "longer":
        content.append(0)
    elif damage == "size":
        content[12:20] = (2**63).to_bytes(8, "little")
    elif damage == "header":
        del content[HEADER.size - 5 :]
    path.write_bytes(content)
    with pytest.raises(UnusableFileError) as caught:
        load(path, DYNAMIC, "vocabulary", VOCABULARY)
    assert caught.value.replaceable


def test_a_file_of_another_kind_or_vocabulary_or_version_is_not_ours_to_replace(tmp_path: Path) -> None:
    path = tmp_path / "cache.bin"
    save(Stored(STATIC, table_of([1, 2, 3]), SECRET), path, "vocabulary")
    for kind, vocabulary in ((DYNAMIC, "vocabulary"), (STATIC, "another")):
        with pytest.raises(UnusableFileError) as caught:
            load(path, kind, vocabulary, VOCABULARY)
        assert not caught.value.replaceable
    newer = bytearray(path.read_bytes())
    newer[8] = 2
    for content, reason in (
        (newer, "version 2"),
        (b"GGUF and so on", "not an n-gram cache"),
        (b"", "not an"),
    ):
        path.write_bytes(content)
        with pytest.raises(UnusableFileError, match=reason) as caught:
            load(path, STATIC, "vocabulary", VOCABULARY)
        assert not caught.value.replaceable


def test_tokens_beyond_the_vocabulary_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "cache.bin"
    save(Stored(DYNAMIC, table_of([1, 2, 500]), SECRET), path, "vocabulary")
    with pytest.raises(UnusableFileError, match="not in the vocabulary"):
        load(path, DYNAMIC, "vocabulary", 500)
    assert len(load(path, DYNAMIC, "vocabulary", 501).table) == 1


def test_build_static_counts_within_streams(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ngram_cache_file, "CHUNK", 3)  # several additions, not one
    path = tmp_path / "static.bin"
    size = build_static(iter([[1, 2, 3], [1, 2, 3, 1], [2, 3, 3], [], [1]]), path, "vocabulary")
    table = load(path, STATIC, "vocabulary", VOCABULARY).table
    assert size == len(table) == 3
    assert table.lookup(key_of([1, 2])) == ({3: 2}, 2)
    assert table.lookup(key_of([2, 3])) == ({1: 1, 3: 1}, 2)
    assert table.lookup(key_of([3, 1])) == ({}, 0)


def test_build_static_says_what_is_wrong(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="token id"):
        build_static([[1, -2, 3]], tmp_path / "static.bin", "vocabulary")
    blocked = tmp_path / "file"
    blocked.write_text("in the way")
    with pytest.raises(ConfigError, match="Cannot write"):
        build_static([[1, 2, 3]], blocked / "static.bin", "vocabulary")
