"""Past outputs are read beside the decoding: what is drafted until then; nothing is lost or mixed."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from drafter_cases import commit, draft, start
from foredraft import Engine, SamplingParams
from foredraft.drafters import suffix_store
from foredraft.drafters.store_thread import StoreThread
from foredraft.drafters.suffix import LOADED_SCOPES, SuffixDrafter, create
from foredraft.drafters.suffix_index import SEPARATOR, Tokens
from foredraft.drafters.suffix_store import SuffixStore
from foredraft.testing import FakeModel, drafter_context

OLD, NEW = list(range(100, 140)), list(range(40, 80))
GIVE_UP_S = 20.0


class Disk:
    """The stores' reading and writing, each held up until it is let go on; `events` says what began."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reading, self.writing, self.begun = threading.Event(), threading.Event(), threading.Event()
        self.reading.set()
        self.writing.set()
        self.events: list[str] = []
        self.threads: set[int] = set()
        load, write = SuffixStore.load, SuffixStore.write

        def held_load(store: SuffixStore) -> Tokens:
            self._begin("read", self.reading)
            return load(store)

        def held_write(store: SuffixStore, records: bytes) -> None:
            self._begin("write", self.writing)
            write(store, records)

        monkeypatch.setattr(SuffixStore, "load", held_load)
        monkeypatch.setattr(SuffixStore, "write", held_write)

    def _begin(self, what: str, gate: threading.Event) -> None:
        self.events.append(what)
        self.threads.add(threading.get_ident())
        self.begun.set()
        gate.wait(GIVE_UP_S)

    def hold_reading(self) -> None:
        self.begun.clear()
        self.reading.clear()

    def hold_writing(self) -> None:
        self.begun.clear()
        self.writing.clear()


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[Disk]:
    held = Disk(monkeypatch)
    yield held
    held.reading.set()
    held.writing.set()


def new(folder: Path, **options: str) -> SuffixDrafter:
    drafter = create(drafter_context(store=folder), {"min-p": "0", **options})
    assert isinstance(drafter, SuffixDrafter)
    return drafter


def say(drafter: SuffixDrafter, output: list[int], *, scope: str = "", number: int = 1) -> None:
    request = start(drafter, [1, 2], number=number, scope=scope)
    commit(drafter, request, output)
    drafter.stop(request)


def remembered(folder: Path, *outputs: list[int], scope: str = "") -> None:
    """A store with these outputs, written by a drafter that is gone."""
    drafter = new(folder)
    for output in outputs:
        say(drafter, output, scope=scope)
    drafter.close()


def on_disk(folder: Path) -> list[list[int]]:
    """The outputs in the only file there is, prompts' ends included."""
    [path] = folder.glob("suffix-*.bin")
    words = path.read_bytes()
    return [
        memoryview(words[begin + 8 : end]).cast("i").tolist() for begin, end in suffix_store._records(words)
    ]


def in_background(call: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=call)
    thread.start()
    return thread


# --- until they are there --------------------------------------------------------------------------------


def test_until_they_are_read_a_request_s_own_text_is_drafted_from(tmp_path: Path, disk: Disk) -> None:
    remembered(tmp_path, OLD)
    drafter = new(tmp_path)
    disk.hold_reading()
    request = start(drafter, [7, 8, 9, 7, 8, *OLD[:5]])
    assert draft(drafter, request) is None, "nothing is known of these tokens yet"
    commit(drafter, request, [7, 8])
    own = draft(drafter, request)
    assert own is not None
    assert own.features["from_store"] == 0
    commit(drafter, request, OLD[5:9])
    disk.reading.set()
    drafter.disk.wait()
    found = draft(drafter, request)
    assert found is not None
    assert found.tokens == tuple(OLD[9:])
    assert found.features["from_store"] == 1
    drafter.close()


def test_an_engine_decodes_while_they_are_read(tmp_path: Path, disk: Disk) -> None:
    remembered(tmp_path, OLD)
    disk.hold_reading()
    disk.threads.clear()
    with Engine(FakeModel(), drafters=[new(tmp_path)]) as engine:
        done = engine.generate([1, 2, 3], SamplingParams(max_tokens=20, ignore_eos=True))
        assert len(done.tokens) == 20
        disk.begun.wait(GIVE_UP_S)
        assert not disk.reading.is_set()
        disk.reading.set()
        assert not engine.notes
    assert threading.get_ident() not in disk.threads
    assert len(on_disk(tmp_path)) == 2


def test_what_is_in_memory_is_used_at_once(tmp_path: Path, disk: Disk) -> None:
    remembered(tmp_path, OLD)
    drafter = new(tmp_path)
    drafter.stop(start(drafter, [1]))
    drafter.disk.wait()
    disk.hold_reading()
    found = draft(drafter, start(drafter, OLD[:5], number=2))
    assert found is not None
    assert found.tokens == tuple(OLD[5:])
    assert disk.events.count("read") == 1
    drafter.close()


def test_where_nothing_is_stored_nothing_is_read(tmp_path: Path, disk: Disk) -> None:
    drafter = new(tmp_path)
    disk.hold_reading()
    say(drafter, OLD)
    found = draft(drafter, start(drafter, OLD[:5], number=2))
    assert found is not None
    assert found.tokens == tuple(OLD[5:])
    assert "read" not in disk.events
    drafter.close()


# --- what is added meanwhile -----------------------------------------------------------------------------


def test_outputs_that_are_added_meanwhile_are_not_lost(tmp_path: Path, disk: Disk) -> None:
    remembered(tmp_path, OLD)
    drafter = new(tmp_path)
    disk.hold_reading()
    say(drafter, NEW)
    disk.reading.set()
    drafter.disk.wait()
    for number, output in ((2, NEW), (3, OLD)):
        found = draft(drafter, start(drafter, output[:5], number=number))
        assert found is not None
        assert found.tokens == tuple(output[5:])
        assert found.features["count"] == 1, "it is there once"
    [past] = drafter._pasts.values()
    assert past.index is not None
    text = past.index.text
    drafter.close()
    outputs = [[1, 2, *OLD], [1, 2, *NEW]]
    assert on_disk(tmp_path) == outputs
    assert [token for token in text.tolist() if token != SEPARATOR] == [*outputs[0], *outputs[1]]


def test_outputs_that_are_written_meanwhile_are_there_once(
    tmp_path: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    remembered(tmp_path, OLD)
    monkeypatch.setattr(suffix_store, "FLUSH_TOKENS", len(NEW))
    drafter = new(tmp_path)
    disk.hold_reading()
    say(drafter, NEW)  # so many that they are to be written
    disk.reading.set()
    drafter.disk.wait()
    found = draft(drafter, start(drafter, NEW[:5], number=2))
    assert found is not None
    assert found.features["count"] == 1
    drafter.close()
    assert on_disk(tmp_path) == [[1, 2, *OLD], [1, 2, *NEW]]


def test_what_is_being_written_is_read_afterwards(tmp_path: Path, disk: Disk) -> None:
    """The scopes that come after it push the first one out of memory; then it comes back."""
    drafter = new(tmp_path)
    say(drafter, OLD, scope="first")
    disk.hold_writing()
    for number in range(LOADED_SCOPES):
        say(drafter, NEW, scope=f"user {number}")
    assert disk.begun.wait(GIVE_UP_S)
    request = start(drafter, OLD[:5], scope="first")
    assert draft(drafter, request) is None
    disk.writing.set()
    drafter.disk.wait()
    found = draft(drafter, request)
    assert found is not None
    assert found.tokens == tuple(OLD[5:])
    drafter.close()


def test_what_is_queued_after_a_write_began_waits_for_the_next(tmp_path: Path, disk: Disk) -> None:
    store = SuffixStore(tmp_path, vocab_hash="v", vocab_size=400, scope="", max_tokens=1000)
    thread = StoreThread()
    disk.hold_writing()
    store.add([1, 2])
    thread.write(store)
    store.add([3])
    disk.writing.set()
    thread.wait()
    assert on_disk(tmp_path) == [[1, 2]]
    thread.write(store)
    thread.close()
    assert on_disk(tmp_path) == [[1, 2], [3]]


# --- scopes ----------------------------------------------------------------------------------------------


def test_what_is_read_for_one_scope_reaches_no_other(tmp_path: Path, disk: Disk) -> None:
    remembered(tmp_path, OLD, scope="ann")
    remembered(tmp_path, NEW, scope="bob")
    drafter = new(tmp_path)
    disk.hold_reading()
    requests = [
        (start(drafter, output[:5], number=number, scope=scope), output, scope == owner)
        for number, (scope, output, owner) in enumerate(
            (scope, output, owner)
            for scope in ("ann", "bob", "")
            for output, owner in ((OLD, "ann"), (NEW, "bob"))
        )
    ]
    assert [draft(drafter, request) for request, _, _ in requests] == [None] * len(requests)
    disk.reading.set()
    drafter.disk.wait()
    for request, output, own in requests:
        found = draft(drafter, request)
        assert (found.tokens if found else None) == (tuple(output[5:]) if own else None)
    drafter.close()


# --- the end ---------------------------------------------------------------------------------------------


def test_closing_waits_for_a_reading_and_begins_no_other(tmp_path: Path, disk: Disk) -> None:
    for scope in ("ann", "bob"):
        remembered(tmp_path, OLD, scope=scope)
    drafter = new(tmp_path)
    disk.hold_reading()
    disk.events.clear()
    for scope in ("ann", "bob"):
        say(drafter, NEW, scope=scope)
    assert disk.begun.wait(GIVE_UP_S)
    closing = in_background(drafter.close)
    closing.join(0.05)
    assert closing.is_alive(), "what was begun is waited for"
    disk.reading.set()
    closing.join(GIVE_UP_S)
    assert not closing.is_alive()
    assert disk.events.count("read") == 1
    for path in tmp_path.glob("suffix-*.bin"):
        assert len(list(suffix_store._records(path.read_bytes()))) == 2, "what was said is remembered"
    drafter.close()


def test_a_scope_that_is_forgotten_before_it_is_read_keeps_its_outputs(tmp_path: Path, disk: Disk) -> None:
    remembered(tmp_path, OLD, scope="first")
    drafter = new(tmp_path)
    disk.hold_reading()
    say(drafter, NEW, scope="first")
    for number in range(LOADED_SCOPES):
        say(drafter, NEW, scope=f"user {number}")
    assert "first" not in drafter._pasts
    request = start(drafter, NEW[:5], scope="first")
    disk.reading.set()
    drafter.disk.wait()
    found = draft(drafter, request)
    assert found is not None
    assert found.tokens == tuple(NEW[5:])
    drafter.close()


# --- what can go wrong -----------------------------------------------------------------------------------


def test_a_damaged_store_is_moved_aside_and_begun_anew(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    remembered(tmp_path, OLD)
    [path] = tmp_path.glob("suffix-*.bin")
    path.write_bytes(b"nonsense" * 20)
    drafter = new(tmp_path)
    request = start(drafter, OLD[:5])
    drafter.disk.wait()
    assert draft(drafter, request) is None
    drafter.stop(request)
    assert "not a file of past outputs" in caplog.text
    say(drafter, NEW, number=2)
    found = draft(drafter, start(drafter, NEW[:5], number=3))
    assert found is not None
    assert found.tokens == tuple(NEW[5:])
    drafter.close()
    assert on_disk(tmp_path) == [[1, 2, *NEW]]


def test_a_folder_that_cannot_be_read_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = tmp_path / "a file"
    folder.write_text("", encoding="utf-8")
    drafter = new(folder)
    request = start(drafter, OLD[:5])
    drafter.disk.wait()
    assert draft(drafter, request) is None
    assert "cannot be read" in caplog.text
    drafter.stop(request)
    drafter.close()


def test_a_reading_that_fails_fails_the_drafter_and_no_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    remembered(tmp_path, OLD)

    def fail(store: SuffixStore) -> Tokens:
        raise MemoryError("too little")

    monkeypatch.setattr(SuffixStore, "load", fail)
    drafter = new(tmp_path)
    with Engine(FakeModel(), drafters=[drafter]) as engine:
        events = engine.stream([1, 2, 3], max_tokens=20, ignore_eos=True)
        next(events)
        drafter.disk.wait()
        assert len(list(events)) == 20, "19 tokens, and the end"
        assert any("too little" in note for note in engine.notes)
