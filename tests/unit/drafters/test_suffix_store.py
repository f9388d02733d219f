from __future__ import annotations

import fcntl
import logging
import os
import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from foredraft.drafters import suffix_store
from foredraft.drafters.suffix_index import SEPARATOR
from foredraft.drafters.suffix_store import FLUSH_S, FLUSH_TOKENS, SuffixStore, describe, forget


def store(folder: Path, *, scope: str = "", vocab_hash: str = "v", max_tokens: int = 1000) -> SuffixStore:
    return SuffixStore(folder, vocab_hash=vocab_hash, vocab_size=100, scope=scope, max_tokens=max_tokens)


def save(folder: Path, *outputs: list[int], scope: str = "", max_tokens: int = 1000) -> Path:
    for output in outputs:
        writer = store(folder, scope=scope, max_tokens=max_tokens)
        writer.add(output)
        writer.flush()
    return writer.path


def outputs(folder: Path, *, scope: str = "", max_tokens: int = 1000) -> list[list[int]]:
    words = store(folder, scope=scope, max_tokens=max_tokens).load()
    found: list[list[int]] = []
    for word in words.tolist():
        if word != SEPARATOR:
            found[-1].append(word)
        elif not found or found[-1]:
            found.append([])
    return found


# --- round trip ------------------------------------------------------------------------------------------


def test_outputs_come_back_in_order(tmp_path: Path) -> None:
    save(tmp_path, [1, 2, 3], [4], [5, 6])
    assert outputs(tmp_path) == [[1, 2, 3], [4], [5, 6]]
    assert store(tmp_path).load()[:2].tolist() == [SEPARATOR, SEPARATOR]


def test_nothing_is_written_before_flush(tmp_path: Path) -> None:
    writer = store(tmp_path / "store")
    writer.add([1, 2, 3])
    assert not (tmp_path / "store").exists()
    writer.flush()
    size = writer.path.stat().st_size
    writer.flush()
    assert writer.path.stat().st_size == size


def test_a_long_queue_says_that_it_should_be_written(tmp_path: Path) -> None:
    writer = store(tmp_path, max_tokens=10 * FLUSH_TOKENS)
    full = [writer.full]
    for output in ([1] * (FLUSH_TOKENS - 1), [2]):
        writer.add(output)
        full.append(writer.full)
    assert not writer.path.exists()
    writer.flush()
    assert writer.path.exists()
    assert [*full, writer.full] == [False, False, True, False]


def test_empty_outputs_are_not_kept(tmp_path: Path) -> None:
    writer = store(tmp_path)
    writer.add([])
    writer.flush()
    assert not writer.path.exists()
    assert len(writer.load()) == 0


def test_only_the_owner_can_read(tmp_path: Path) -> None:
    path = save(tmp_path / "deep" / "store", [1, 2])
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    save(path.parent, [3] * 900, [4] * 900)  # compacted
    assert path.stat().st_mode & 0o777 == 0o600


def test_scopes_and_vocabularies_have_files_of_their_own(tmp_path: Path) -> None:
    save(tmp_path, [1], scope="ann")
    save(tmp_path, [2], scope="bob")
    assert outputs(tmp_path, scope="ann") == [[1]]
    assert outputs(tmp_path, scope="bob") == [[2]]
    assert outputs(tmp_path, scope="") == []
    assert len(store(tmp_path, scope="ann", vocab_hash="w").load()) == 0
    assert not any("ann" in path.name or "bob" in path.name for path in tmp_path.iterdir())


def test_a_file_under_another_scopes_name_is_not_read(tmp_path: Path) -> None:
    path = save(tmp_path, [1, 2, 3], scope="ann")
    path.replace(store(tmp_path, scope="bob").path)
    assert outputs(tmp_path, scope="bob") == []


# --- crashes ---------------------------------------------------------------------------------------------


def test_a_torn_output_at_any_byte_costs_only_itself(tmp_path: Path) -> None:
    path = save(tmp_path, [1, 2, 3], [4, 5])
    before = path.stat().st_size
    save(tmp_path, [6, 7, 8])
    whole = path.read_bytes()
    for size in range(before, len(whole)):
        path.write_bytes(whole[:size])
        assert outputs(tmp_path) == [[1, 2, 3], [4, 5]]
        save(tmp_path, [9])
        assert outputs(tmp_path) == [[1, 2, 3], [4, 5], [9]]


def test_a_torn_header_is_written_anew(tmp_path: Path) -> None:
    path = save(tmp_path, [1, 2, 3])
    header = path.read_bytes()[:32]
    for size in range(32):
        path.write_bytes(header[:size])
        assert outputs(tmp_path) == []
        save(tmp_path, [9])
        assert outputs(tmp_path) == [[9]]
    assert not list(tmp_path.glob("*.corrupt"))


@given(at=st.integers(32, 75), bit=st.integers(0, 7))
def test_a_flipped_bit_is_never_served(tmp_path_factory: pytest.TempPathFactory, at: int, bit: int) -> None:
    folder = tmp_path_factory.mktemp("store")
    texts = [[1, 2, 3], [4, 5], [6]]
    path = save(folder, *texts)
    data = bytearray(path.read_bytes())
    data[min(at, len(data) - 1)] ^= 1 << bit
    path.write_bytes(bytes(data))
    found = outputs(folder)
    assert len(found) < 3
    assert found == texts[: len(found)]


def test_a_tail_of_zeros_is_dropped(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = save(tmp_path, [1, 2, 3])
    path.write_bytes(path.read_bytes() + bytes(4096))
    assert outputs(tmp_path) == [[1, 2, 3]]
    save(tmp_path, [4])
    assert "dropped 4096 bytes" in caplog.text
    assert outputs(tmp_path) == [[1, 2, 3], [4]]


@pytest.mark.parametrize("content", [b"x", b"GGUF" * 100, b"foredraft-suffix" + bytes(64), bytes(5000)])
@pytest.mark.parametrize("writing", [False, True])
def test_a_foreign_file_is_moved_aside(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, content: bytes, writing: bool
) -> None:
    path = store(tmp_path).path
    path.write_bytes(content)
    if writing:
        save(tmp_path, [1, 2])
    assert outputs(tmp_path) == ([[1, 2]] if writing else [])
    assert path.with_name(path.name + ".corrupt").read_bytes() == content
    assert [record.levelno for record in caplog.records] == [logging.WARNING]


def test_tokens_outside_the_vocabulary_are_not_served(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = save(tmp_path, [1, 100])
    assert outputs(tmp_path) == []
    assert "outside the vocabulary" in caplog.text
    assert not path.exists()


def test_an_unusable_path_is_logged_not_raised(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    save(blocked, [1, 2])
    assert "cannot be stored" in caplog.text
    store(tmp_path).path.mkdir()
    assert outputs(tmp_path) == []
    assert "cannot be read" in caplog.text


def test_a_failed_write_leaves_earlier_outputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(tmp_path, [1, 2, 3])
    write = os.write

    def full(file: int, data: memoryview) -> int:
        if len(data) < 8:
            raise OSError(28, "No space left on device")
        return write(file, data[:5])

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        save(tmp_path, [4, 5])
    assert outputs(tmp_path) == [[1, 2, 3]]
    save(tmp_path, [6])
    assert outputs(tmp_path) == [[1, 2, 3], [6]]


# --- bounds and compaction -------------------------------------------------------------------------------


@given(st.lists(st.integers(1, 40), min_size=1, max_size=12))
def test_the_file_keeps_the_newest_within_its_bound(
    tmp_path_factory: pytest.TempPathFactory, lengths: list[int]
) -> None:
    folder = tmp_path_factory.mktemp("store")
    written = [[number] * length for number, length in enumerate(lengths)]
    save(folder, *written, max_tokens=60)
    [found] = describe(folder)
    assert found.tokens <= 60
    kept = outputs(folder, max_tokens=60)
    assert kept == written[len(written) - len(kept) :]
    assert kept
    if sum(lengths) + 2 * len(lengths) + 8 <= 60:
        assert kept == written


def test_an_output_over_the_bound_keeps_its_end(tmp_path: Path) -> None:
    save(tmp_path, list(range(90)), max_tokens=20)
    assert outputs(tmp_path, max_tokens=20) == [list(range(70, 90))]


def test_a_smaller_bound_reads_only_the_newest(tmp_path: Path) -> None:
    save(tmp_path, [1] * 10, [2] * 10, [3] * 10)
    assert outputs(tmp_path, max_tokens=20) == [[2] * 10, [3] * 10]


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_a_kill_during_compaction_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    save(tmp_path, [1] * 40, max_tokens=60)

    class Killed(BaseException):
        pass

    def kill(*args: object) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(os if step == "fsync" else Path, step, kill)
        with pytest.raises(Killed):
            save(tmp_path, [2] * 30, max_tokens=60)
    assert list(tmp_path.glob("*.tmp"))
    assert outputs(tmp_path) == [[1] * 40, [2] * 30]
    save(tmp_path, [3] * 5, max_tokens=60)
    assert outputs(tmp_path) == [[2] * 30, [3] * 5]
    assert not list(tmp_path.glob("*.tmp"))


# --- two processes ---------------------------------------------------------------------------------------


def test_two_writers_take_turns(tmp_path: Path) -> None:
    def write(first: int) -> None:
        for number in range(first, first + 20):
            save(tmp_path, [number] * 3)

    writers = [threading.Thread(target=write, args=(first,)) for first in (0, 50)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    found = outputs(tmp_path)
    assert sorted(output[0] for output in found) == [*range(20), *range(50, 70)]
    assert all(len(output) == 3 for output in found)


@pytest.mark.parametrize("change", ["compacted", "erased"])
def test_a_writer_that_waited_finds_the_new_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    path = save(tmp_path, [1, 2, 3])
    lock = fcntl.flock
    waited: list[int] = []

    def wait(file: int, how: int) -> None:
        if not waited:  # while we wait, the other process replaces or erases the file
            waited.append(file)
            data = path.read_bytes()
            path.unlink()
            if change == "compacted":
                path.write_bytes(data)
        lock(file, how)

    monkeypatch.setattr(fcntl, "flock", wait)
    save(tmp_path, [4])
    assert outputs(tmp_path) == ([[1, 2, 3], [4]] if change == "compacted" else [[4]])


# --- for the command line --------------------------------------------------------------------------------


def test_describe(tmp_path: Path) -> None:
    assert describe(tmp_path / "missing") == []
    path = save(tmp_path, [1, 2, 3], [4, 5])
    save(tmp_path, [6], scope="ann")
    store(tmp_path, scope="damaged").path.write_bytes(b"nonsense")
    (tmp_path / "other.bin").write_bytes(b"x")
    found = {row.file: row for row in describe(tmp_path)}
    assert len(found) == 3
    assert found[path] == (path, 5, path.stat().st_size, 2)
    assert sum(row.outputs for row in found.values()) == 3


def test_forget_erases_ours_and_nothing_else(tmp_path: Path) -> None:
    assert forget(tmp_path / "missing") == (0, 0)
    path = save(tmp_path, [1, 2, 3])
    ours = [path, path.with_name(path.name + ".tmp"), path.with_name(path.name + ".corrupt")]
    ours += [tmp_path / "ngram-cache-abc.bin", tmp_path / "ngram-cache-abc.bin.k3_x9zqa"]
    for number, file in enumerate(ours[1:]):
        file.write_bytes(bytes(number + 1))
    others = ["notes.txt", "suffix-notes.bin", "ngram-cache.txt", "profile.json", path.name + ".bak"]
    for name in others:
        (tmp_path / name).write_bytes(b"keep")
    (tmp_path / "ngram-cache-folder.bin").mkdir()
    size = path.stat().st_size + 1 + 2 + 3 + 4
    assert forget(tmp_path) == (5, size)
    assert sorted(file.name for file in tmp_path.iterdir()) == sorted([*others, "ngram-cache-folder.bin"])
    assert outputs(tmp_path) == []
    save(tmp_path, [7])
    assert outputs(tmp_path) == [[7]]


def test_the_format_is_stable(tmp_path: Path) -> None:
    """A file written by an earlier version must stay readable: bump MAGIC when this has to change."""
    data = save(tmp_path, [1, 2]).read_bytes()
    assert data[:16] == suffix_store.MAGIC
    assert np.frombuffer(data[40:], "<i4").tolist() == [1, 2]
    assert data[32:36] == b"\x02\x00\x00\x00"
    assert len(data) == 48


def test_a_few_tokens_are_due_after_a_while(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr("foredraft.drafters.suffix_store.monotonic", lambda: now[0])
    writer = store(tmp_path)
    now[0] += 2 * FLUSH_S
    full = [writer.full]
    for passed, token in ((0, 1), (FLUSH_S, 2)):
        now[0] += passed
        writer.add([token])
        full.append(writer.full)
    writer.flush()
    writer.add([3])
    assert [*full, writer.full] == [False, False, True, False]
