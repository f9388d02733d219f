"""The file of figures: shared, bounded, and never in the way."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from foredraft.server.console.figure_store import (
    FILE_NAME,
    LEVELS,
    MOST_KEYS,
    Changes,
    FigureStore,
    Usage,
)
from foredraft.server.console.figures import Figures

NOW = 1_800_000_000


def tokens(count: int, at: int = NOW // 30 * 30, step: int = 30) -> Changes:
    return Changes(rows={(step, at): Figures(generated=count)}, since=NOW)


def total(changes: Changes, step: int = 30) -> int:
    return sum(figures.generated for (of, _), figures in changes.rows.items() if of == step)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "cache" / FILE_NAME


def test_what_was_added_is_there_for_the_next(path: Path) -> None:
    first = FigureStore(path)
    first.exchange(tokens(5), NOW)
    first.exchange(tokens(7), NOW)
    found = FigureStore(path).exchange(Changes(since=NOW + 9), NOW)
    assert total(found) == 12
    assert found.since == NOW
    assert path.stat().st_mode & 0o777 == 0o600


def test_two_servers_add_up_and_learn_of_each_other(path: Path) -> None:
    one, two = FigureStore(path), FigureStore(path)
    one.exchange(tokens(5), NOW)
    assert total(two.exchange(tokens(7), NOW)) == 12
    assert total(one.exchange(Changes(), NOW)) == 12
    assert total(one.exchange(Changes(), NOW)) == 0, "nothing new"
    one.exchange(Changes(usage={"alice": Usage(1, 10, 5.0)}), NOW)
    found = two.exchange(Changes(usage={"alice": Usage(2, 20, 4.0), "bob": Usage(1, 1, 1.0)}), NOW)
    assert found.usage == {"alice": Usage(3, 30, 5.0), "bob": Usage(1, 1, 1.0)}


WRITER = """
import sys
from pathlib import Path
from foredraft.server.console.figure_store import Changes, FigureStore
from foredraft.server.console.figures import Figures
store = FigureStore(Path(sys.argv[1]))
for _ in range(100):
    store.exchange(Changes(rows={(30, 1_799_999_970 + 30): Figures(generated=1)}), 1_800_000_000)
"""


def test_processes_that_write_at_once_lose_nothing(path: Path) -> None:
    writers = [subprocess.Popen([sys.executable, "-c", WRITER, str(path)]) for _ in range(2)]
    assert [writer.wait(60) for writer in writers] == [0, 0]
    assert total(FigureStore(path).exchange(Changes(), NOW)) == 200


def test_a_writer_that_is_killed_leaves_a_file_that_works(path: Path) -> None:
    script = WRITER.replace("range(100)", "iter(int, 1)").replace(
        "store.exchange(C", "print('.', flush=True); store.exchange(C"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script, str(path)], stdout=subprocess.PIPE, text=True
    ) as writer:
        assert writer.stdout is not None
        for _ in range(20):
            writer.stdout.readline()
        writer.kill()
    found = FigureStore(path).exchange(tokens(1), NOW)
    assert total(found) >= 20
    assert not path.with_name(FILE_NAME + ".corrupt").exists()


@pytest.mark.parametrize("content", [b"not a database" * 1000, b"SQLite format 3\0" + b"x" * 5000])
def test_a_damaged_file_is_moved_aside(path: Path, content: bytes) -> None:
    path.parent.mkdir()
    path.write_bytes(content)
    assert total(FigureStore(path).exchange(tokens(5), NOW)) == 5
    assert path.with_name(FILE_NAME + ".corrupt").read_bytes() == content


def test_a_file_that_is_damaged_while_it_is_open_is_moved_aside(path: Path) -> None:
    store = FigureStore(path)
    for number in range(100):
        store.exchange(tokens(1, NOW - 30 * number), NOW)
    with closing(sqlite3.connect(path)) as other:
        other.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    with path.open("r+b") as file:
        file.write(b"\xff" * path.stat().st_size)
    store.close()
    assert total(store.exchange(tokens(5), NOW)) == 5


def test_another_program_s_database_is_moved_aside_whole(path: Path) -> None:
    path.parent.mkdir()
    with closing(sqlite3.connect(path)) as other:
        other.execute("CREATE TABLE theirs (x)")
        other.execute("INSERT INTO theirs VALUES (7)")
        other.commit()
    assert total(FigureStore(path).exchange(tokens(5), NOW)) == 5
    with closing(sqlite3.connect(path.with_name(FILE_NAME + ".corrupt"))) as other:
        assert list(other.execute("SELECT x FROM theirs")) == [(7,)]


def test_a_later_version_s_file_is_left_alone(path: Path) -> None:
    FigureStore(path).exchange(tokens(5), NOW)
    with closing(sqlite3.connect(path)) as later:
        later.execute("PRAGMA user_version = 99")
    with pytest.raises(sqlite3.OperationalError, match="later version"):
        FigureStore(path).exchange(tokens(1), NOW)
    assert not path.with_name(FILE_NAME + ".corrupt").exists()


def test_a_locked_file_is_an_error_and_nothing_is_lost(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("foredraft.server.console.figure_store.BUSY_S", 0.05)
    store = FigureStore(path)
    store.exchange(tokens(5), NOW)
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            store.exchange(tokens(7), NOW)
    assert total(store.exchange(tokens(7), NOW)) == 12


def test_a_file_that_is_erased_is_begun_anew(path: Path) -> None:
    store = FigureStore(path)
    store.exchange(tokens(5), NOW)
    for each in path.parent.iterdir():
        each.unlink()
    assert total(store.exchange(tokens(7), NOW)) == 7


def test_rows_that_make_no_sense_are_passed_over(path: Path) -> None:
    store = FigureStore(path)
    store.exchange(tokens(5), NOW)
    with closing(sqlite3.connect(path)) as other:
        other.execute("INSERT INTO figures VALUES (30, ?, 99, 'nonsense')", [NOW - 60])
        other.commit()
    assert total(FigureStore(path).exchange(Changes(), NOW)) == 5


@pytest.mark.parametrize("years", [-57, -1, 1, 12])
def test_a_clock_that_was_wrong_once_erases_nothing(path: Path, years: int) -> None:
    for step, _ in LEVELS:
        FigureStore(path).exchange(tokens(5, NOW // step * step, step), NOW)
    wrong = NOW + years * 365 * 86400
    FigureStore(path).exchange(tokens(1, wrong // 30 * 30), wrong)
    found = FigureStore(path).exchange(Changes(), NOW)
    assert [found.rows[step, NOW // step * step].generated for step, _ in LEVELS] == [5] * len(LEVELS)


def test_rows_of_a_wrong_clock_make_room(path: Path) -> None:
    step, keep = LEVELS[0]
    row = NOW // step * step
    wrong = Changes(rows={(step, row + (1000 + n) * step): Figures(generated=1) for n in range(2 * keep)})
    FigureStore(path).exchange(wrong, NOW)
    right = Changes(rows={(step, row - n * step): Figures(generated=1) for n in range(keep)})
    FigureStore(path).exchange(right, NOW)
    assert FigureStore(path).exchange(Changes(), NOW).rows.keys() == right.rows.keys()


def test_rows_and_keys_beyond_what_is_kept_are_dropped(path: Path) -> None:
    store = FigureStore(path)
    for step, keep in LEVELS:
        rows = {(step, (NOW // step - age) * step): Figures(generated=1) for age in range(keep + 40)}
        store.exchange(Changes(rows=rows), NOW)
    found = FigureStore(path).exchange(Changes(), NOW)
    assert {step: total(found, step) for step, _ in LEVELS} == dict(LEVELS)
    assert min(at for step, at in found.rows if step == 30) == NOW // 30 * 30 - 30 * (LEVELS[0].keep - 1)
    store.exchange(Changes(usage={f"key-{n}": Usage(1, 1, float(n)) for n in range(MOST_KEYS + 50)}), NOW)
    keys = store.exchange(Changes(), NOW).usage
    assert len(keys) == MOST_KEYS
    assert "key-0" not in keys
