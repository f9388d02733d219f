"""The prefixes on disk: found by their text and scope, bounded, and never trusted wrongly."""

from __future__ import annotations

import logging
import os
import random
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from foredraft import files
from foredraft.engine.prefix import disk, file_format
from foredraft.engine.prefix.disk import PrefixStore, Stored

LEAST = 4
TEXT = list(range(100, 120))
MANY = 10**9


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "prefixes"


@pytest.fixture
def stores(folder: Path) -> Iterator[list[PrefixStore]]:
    made: list[PrefixStore] = []
    yield made
    for store in made:
        store.close()


@pytest.fixture
def store(folder: Path, stores: list[PrefixStore]) -> PrefixStore:
    return opened(folder, stores)


Reaches = Callable[[int, int], bool]


def anything(_held: int, _length: int) -> bool:
    return True


def opened(
    folder: Path,
    stores: list[PrefixStore],
    key: str = "key",
    *,
    size: int = MANY,
    reaches: Reaches = anything,
) -> PrefixStore:
    """A store as a process that begins now would have it."""
    for before in stores:
        before.flush()
    stores.append(PrefixStore(folder, key, max_bytes=size, min_tokens=LEAST, reaches=reaches))
    stores[-1].flush()
    return stores[-1]


def cells(tokens: Sequence[int]) -> bytearray:
    """What stands for the cells of a text."""
    return bytearray(",".join(map(str, tokens)).encode())


def save(store: PrefixStore, tokens: Sequence[int], scope: str = "") -> None:
    store.save(tokens, scope, cells(tokens))
    store.flush()


def load(store: PrefixStore, stored: Stored) -> bytearray | None:
    """The cells of a prefix, read and checked."""
    read = store.load(stored, store.read(stored))
    return None if read is None else read.data


def found(store: PrefixStore, tokens: Sequence[int], scope: str = "") -> int:
    """How many tokens the best prefix shares, if its cells are still there: they are those of its tokens."""
    best = store.find(tokens, scope)
    if best is None:
        return 0
    stored, shared = best
    assert list(stored.tokens[:shared]) == list(tokens[:shared])
    loaded = load(store, stored)
    assert loaded in (None, cells(stored.tokens.tolist()))
    return 0 if loaded is None else shared


def bins(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.bin"))


# --- finding -------------------------------------------------------------------------------------------


def test_a_prefix_is_found_in_this_process_and_the_next(
    store: PrefixStore, folder: Path, stores: list[PrefixStore]
) -> None:
    save(store, TEXT)
    for one in (store, opened(folder, stores)):
        assert found(one, [*TEXT, 1, 2]) == len(TEXT)
        assert found(one, TEXT[:7]) == 7
        assert found(one, [*TEXT[:9], 1, 2, 3]) == 9
        assert found(one, [*TEXT[: LEAST - 1], 1, 2, 3]) == 0
        assert found(one, TEXT[: LEAST - 1]) == 0
        assert found(one, [1, 2, 3, 4, 5]) == 0
        assert found(one, []) == 0


def test_the_longest_is_found(store: PrefixStore) -> None:
    for at in (8, 12, 16):
        save(store, [*TEXT[:at], 1, 2, 3])
    assert found(store, [*TEXT[:12], 9]) == 12
    assert found(store, TEXT) == 16


@pytest.mark.parametrize(("scope", "key"), [("bob", "key"), ("", "key"), ("alice", "another")])
def test_another_scope_or_model_finds_nothing(
    store: PrefixStore, folder: Path, stores: list[PrefixStore], scope: str, key: str
) -> None:
    save(store, TEXT, "alice")
    assert found(store, TEXT, "alice")
    assert not found(opened(folder, stores, key), TEXT, scope)
    assert len(bins(folder)) == 1, "it stays for whom it is of use"


def test_one_that_continues_another_takes_its_place(
    store: PrefixStore, folder: Path, stores: list[PrefixStore]
) -> None:
    save(store, TEXT[:10])
    save(store, TEXT[:10], "bob")
    save(store, [*TEXT[:8], 1, 2])
    save(store, TEXT)
    assert len(bins(folder)) == 3
    for one in (store, opened(folder, stores)):
        assert found(one, TEXT[:10]) == 10
        assert found(one, [*TEXT[:8], 1, 2, 3]) == 10
        assert found(one, TEXT, "bob") == 10


def test_what_cannot_be_cut_is_used_whole_or_not_at_all(folder: Path, stores: list[PrefixStore]) -> None:
    store = opened(folder, stores, reaches=lambda held, length: length >= held)
    save(store, TEXT[:10])
    save(store, TEXT)
    assert len(bins(folder)) == 2
    assert found(store, [*TEXT, 1]) == len(TEXT)
    assert found(store, TEXT[:15]) == 10
    assert found(store, TEXT[:9]) == 0


def test_what_can_be_cut_by_one_is_found_there(folder: Path, stores: list[PrefixStore]) -> None:
    store = opened(folder, stores, reaches=lambda held, length: length >= held - 1)
    save(store, TEXT[:10])
    save(store, TEXT)
    assert len(bins(folder)) == 2
    assert found(store, TEXT[:-1]) == len(TEXT) - 1
    assert found(store, TEXT[:15]) == 10
    assert found(store, TEXT[:9]) == 9


# --- the files -----------------------------------------------------------------------------------------


def test_only_the_user_can_read_them(store: PrefixStore, folder: Path) -> None:
    save(store, TEXT, "alice")
    (path,) = bins(folder)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_what_was_not_used_for_longest_makes_room(folder: Path, stores: list[PrefixStore]) -> None:
    texts = [[n * 50 + i for i in range(20)] for n in range(4)]
    size = len(
        file_format.finish(
            cells(texts[3]), file_format.Identity(b"m" * 16, b"s" * 16), file_format.as_tokens(texts[3])
        )
    )
    store = opened(folder, stores, size=3 * size)
    for n, text in enumerate(texts[:3]):
        save(store, text)
        past = 1_000_000 + n
        os.utime(max(bins(folder), key=lambda path: path.stat().st_mtime), (past, past))
    assert found(store, texts[0]) == 20
    store.flush()  # its use is noted
    save(store, texts[3])
    assert [found(store, text) for text in texts] == [20, 0, 20, 20]
    other = opened(folder, stores, "another", size=size)
    assert len(bins(folder)) == 1, "files of every model count"
    save(other, texts[1])
    assert found(other, texts[1]) == 20


def test_more_than_the_whole_bound_is_not_kept(
    folder: Path, stores: list[PrefixStore], caplog: pytest.LogCaptureFixture
) -> None:
    store = opened(folder, stores, size=300)
    save(store, TEXT[:5])
    save(store, list(range(200)))
    assert len(bins(folder)) == 1
    assert "prefix_cache_gb allows 300" in caplog.text
    assert found(store, list(range(200))) == 0


@pytest.mark.parametrize("bad", [b"", b"x" * 500, None])
def test_a_damaged_file_is_removed_when_the_store_is_opened(
    store: PrefixStore,
    folder: Path,
    stores: list[PrefixStore],
    caplog: pytest.LogCaptureFixture,
    bad: bytes | None,
) -> None:
    save(store, TEXT)
    (path,) = bins(folder)
    path.write_bytes(path.read_bytes()[:-1] if bad is None else bad)
    new = opened(folder, stores)
    assert f"Removing the stored prefix {path}" in caplog.text
    assert not path.exists()
    assert found(new, TEXT) == 0


def test_damaged_cells_are_noticed_when_they_are_read(
    store: PrefixStore, folder: Path, stores: list[PrefixStore], caplog: pytest.LogCaptureFixture
) -> None:
    save(store, TEXT)
    (path,) = bins(folder)
    content = path.read_bytes()
    path.write_bytes(b"9" + content[1:])
    new = opened(folder, stores)
    best = new.find(TEXT, "")
    assert best is not None
    assert load(new, best[0]) is None
    new.flush()
    assert "checksum" in caplog.text
    assert not path.exists()
    assert new.find(TEXT, "") is None


def test_a_file_under_anothers_name_is_refused(
    store: PrefixStore, folder: Path, stores: list[PrefixStore], caplog: pytest.LogCaptureFixture
) -> None:
    save(store, TEXT, "alice")
    (path,) = bins(folder)
    bob = file_format.Identity(file_format.digest("key"), file_format.digest("bob"))
    path.rename(folder / file_format.name_of(bob, file_format.as_tokens(TEXT)))
    new = opened(folder, stores)
    assert found(new, TEXT, "bob") == found(new, TEXT, "alice") == 0
    assert "another prefix than its name says" in caplog.text


def test_files_that_vanish_are_missed_by_nobody(
    store: PrefixStore, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    save(store, TEXT)
    best = store.find(TEXT, "")
    assert best is not None
    file_format.forget(folder)
    assert load(store, best[0]) is None
    assert store.find(TEXT, "") is None
    assert not caplog.records


def test_a_folder_that_cannot_be_written_is_said_and_nothing_else(
    tmp_path: Path, stores: list[PrefixStore], caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    store = opened(tmp_path / "file" / "prefixes", stores)
    save(store, TEXT)
    assert "cannot be kept up" in caplog.text
    assert found(store, TEXT) == 0


def test_foreign_files_stay(store: PrefixStore, folder: Path, stores: list[PrefixStore]) -> None:
    save(store, TEXT)
    for name in ("notes.txt", "prefix-x.bin"):
        (folder / name).write_bytes(b"mine")
    opened(folder, stores, size=1)
    assert [path.name for path in sorted(folder.iterdir())] == ["notes.txt", "prefix-x.bin"]


# --- the thread that writes ----------------------------------------------------------------------------


def test_it_is_written_elsewhere_and_no_more_is_taken_than_fits(
    store: PrefixStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on, threads = threading.Event(), []
    real = files.write_atomically

    def slow(path: Path, content: bytes, *, mode: int) -> None:
        threads.append(threading.current_thread().name)
        assert go_on.wait(30)
        real(path, content, mode=mode)

    monkeypatch.setattr(disk, "write_atomically", slow)
    for n in range(disk.MAX_PENDING_WRITES):
        assert store.keeps_up
        store.save([n] * 10, "", cells([n] * 10))
    best = store.find([0] * 10, "")
    assert best is not None
    assert (store.keeps_up, best[0].ready) == (False, False)
    go_on.set()
    store.flush()
    assert (store.keeps_up, best[0].ready) == (True, True)
    assert found(store, [0] * 10) == 10
    assert all(name.startswith("foredraft-prefix") for name in threads)


def test_what_a_crash_left_half_written_goes_when_it_is_old(
    store: PrefixStore, folder: Path, stores: list[PrefixStore]
) -> None:
    save(store, TEXT)
    (path,) = bins(folder)
    old, new = folder / f".{path.name}.aaaaaaaa", folder / f".{path.name}.bbbbbbbb"
    for left in (old, new):
        left.write_bytes(path.read_bytes())
    then = time.time() - disk.STALE_S - 1
    os.utime(old, (then, then))
    opened(folder, stores)
    assert not old.exists()
    assert new.exists(), "somebody may be writing it"


WRITER = """
import sys
from pathlib import Path
from foredraft.engine.prefix.disk import PrefixStore, Stored

store = PrefixStore(Path(sys.argv[1]), "key", max_bytes=10**9, min_tokens=4, reaches=lambda *_: True)
for n in range(10**6):
    store.save([n] * 8, "", bytearray(str(n).encode() * 10**6))
    print(n, flush=True)
    while not store.keeps_up:
        pass
"""


@pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGKILL")
def test_nothing_is_trusted_wrongly_after_a_kill(folder: Path, stores: list[PrefixStore]) -> None:
    chance = random.Random(1)
    for _ in range(4):
        with subprocess.Popen(
            [sys.executable, "-c", WRITER, str(folder)], stdout=subprocess.PIPE, text=True
        ) as process:
            assert process.stdout is not None
            for _ in range(chance.randint(5, 20)):
                process.stdout.readline()
            process.send_signal(signal.SIGKILL)
    store = opened(folder, stores)
    kept = 0
    for n in range(len(bins(folder))):
        best = store.find([n] * 8, "")
        if best is not None:
            kept += 1
            assert load(store, best[0]) == bytearray(str(n).encode() * 10**6)
    assert kept > 4, "what was on the disk is still there"


def test_problems_are_logged_by_the_store(caplog: pytest.LogCaptureFixture, folder: Path) -> None:
    folder.mkdir()
    name = file_format.name_of(
        file_format.Identity(file_format.digest("key"), b"s" * 16), file_format.as_tokens(TEXT)
    )
    (folder / name).write_bytes(b"not a prefix")
    with caplog.at_level(logging.WARNING, logger=disk.__name__):
        PrefixStore(folder, "key", max_bytes=MANY, min_tokens=LEAST, reaches=anything).close()
    assert "too short to be a prefix" in caplog.text
