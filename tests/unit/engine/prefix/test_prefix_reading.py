"""A disk that takes its time holds nobody up but the request whose prefix it brings."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from foredraft import Engine, SamplingParams
from foredraft.engine.prefix import file_format
from foredraft.engine.prefix.disk import open_disk
from foredraft.engine.prefix.file_format import Identity, Tokens
from foredraft.testing import FakeModel
from foredraft.types import Event, FinishEvent, FinishReason, Rows, TokenEvent

ALICE = [1, *range(10, 110)]
BOB = [2, *range(10, 110)]
CAROL = [3, 4, 5]
PATIENCE_S = 20.0
"""A test that is stuck fails after so long. Nothing else depends on it."""


class SlowDisk:
    """Reads of prefixes that last until `ready` is set. `reading`: one has begun; `threads`: who read."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ready, self.reading = threading.Event(), threading.Event()
        self.threads: list[threading.Thread] = []
        self.failure: OSError | None = None
        real = file_format.read

        def read(path: Path, identity: Identity, tokens: Tokens) -> bytearray:
            self.threads.append(threading.current_thread())
            self.reading.set()
            assert self.ready.wait(PATIENCE_S)
            if self.failure is not None:
                raise self.failure
            return real(path, identity, tokens)

        monkeypatch.setattr(file_format, "read", read)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[SlowDisk]:
    made = SlowDisk(monkeypatch)
    yield made
    made.ready.set()


def engine_of(folder: Path, sequences: int = 2) -> Engine:
    """An engine in virtual time that has answered Alice and Bob before it was started anew."""
    model = FakeModel(sequences=sequences)
    engine = Engine(model, clock=model.clock)
    engine._scheduler.cache.disk = open_disk(model, folder, 10**8, clock=model.clock)
    return engine


@pytest.fixture
def engine(tmp_path: Path, disk: SlowDisk) -> Iterator[Engine]:
    with engine_of(tmp_path) as before:
        for prompt in (ALICE, BOB):
            before.generate(prompt, max_tokens=1)
    made = engine_of(tmp_path)
    yield made
    disk.ready.set()
    made.close()


def plain(prompt: list[int], tokens: int) -> tuple[int, ...]:
    with Engine(FakeModel()) as alone:
        return alone.generate(prompt, max_tokens=tokens, ignore_eos=True).tokens


def tokens_of(events: list[Event], request: int) -> tuple[int, ...]:
    return tuple(e.token for e in events if isinstance(e, TokenEvent) and e.request == request)


def end_of(events: list[Event], request: int) -> FinishEvent:
    (end,) = [event for event in events if isinstance(event, FinishEvent) and event.request == request]
    return end


def add(engine: Engine, prompt: list[int], tokens: int = 5) -> int:
    return engine.add(prompt, SamplingParams(max_tokens=tokens, ignore_eos=True))


def finish(engine: Engine) -> list[Event]:
    events: list[Event] = []
    while not engine.idle:
        events += engine.step()
    return events


def test_others_go_on_while_a_prefix_is_read(engine: Engine, disk: SlowDisk) -> None:
    talking = add(engine, CAROL, 60)
    engine.step()
    alice = add(engine, [*ALICE, 7])
    events = [event for _ in range(50) for event in engine.step()]
    assert disk.reading.wait(PATIENCE_S)
    assert len(tokens_of(events, talking)) == 50, "a token in every round"
    assert not tokens_of(events, alice), "it waits for its prefix"
    disk.ready.set()
    events += finish(engine)
    assert tokens_of(events, alice) == plain([*ALICE, 7], 5)
    assert end_of(events, alice).usage.cached_tokens == len(ALICE)
    assert threading.current_thread() not in disk.threads


def test_a_place_is_kept_for_it_and_others_come_in(engine: Engine, disk: SlowDisk) -> None:
    alice = add(engine, [*ALICE, 7])
    carol, dave = add(engine, CAROL), add(engine, [9, 9])
    events = [event for _ in range(30) for event in engine.step()]
    assert [end_of(events, one).reason for one in (carol, dave)] == [FinishReason.LENGTH] * 2
    assert engine.waiting_count == 1
    disk.ready.set()
    events += finish(engine)
    assert end_of(events, alice).usage.cached_tokens == len(ALICE)


def test_the_engine_rests_while_there_is_nothing_else_to_do(engine: Engine, disk: SlowDisk) -> None:
    add(engine, [*ALICE, 7])
    forwards = len(engine.model.forwards)  # type: ignore[attr-defined]
    assert not [event for _ in range(20) for event in engine.step()]
    assert len(engine.model.forwards) == forwards  # type: ignore[attr-defined]
    assert not engine.idle
    timer = threading.Timer(0.05, disk.ready.set)
    timer.start()
    assert len(finish(engine)) == 6
    timer.join()


def test_two_prefixes_are_read_for_two_requests(engine: Engine, disk: SlowDisk) -> None:
    requests = [add(engine, [*prompt, 7]) for prompt in (ALICE, BOB)]
    engine.step()
    disk.ready.set()
    events = finish(engine)
    for request, prompt in zip(requests, (ALICE, BOB), strict=True):
        assert end_of(events, request).usage.cached_tokens == len(prompt)
        assert tokens_of(events, request) == plain([*prompt, 7], 5)


def test_a_request_given_up_meanwhile_is_gone(engine: Engine, disk: SlowDisk) -> None:
    alice = add(engine, [*ALICE, 7])
    engine.step()
    (end,) = engine.abort(alice)
    assert isinstance(end, FinishEvent)
    assert end.reason is FinishReason.ABORT
    assert engine.idle
    disk.ready.set()
    assert engine.generate([*ALICE, 7], max_tokens=1).usage.cached_tokens == len(ALICE), "and found again"


def test_a_deadline_passes_meanwhile(engine: Engine, disk: SlowDisk) -> None:
    talking = add(engine, CAROL, 30)
    alice = engine.add([*ALICE, 7], SamplingParams(max_tokens=1), deadline_s=0.1)
    events = finish(engine)
    end = end_of(events, alice)
    assert end.reason is FinishReason.ABORT
    assert "waiting" in (end.error or "")
    assert len(tokens_of(events, talking)) == 30
    assert not disk.ready.is_set()


@pytest.mark.parametrize("failure", [FileNotFoundError("gone"), OSError(5, "Input/output error")])
def test_what_cannot_be_read_is_computed(engine: Engine, disk: SlowDisk, failure: OSError) -> None:
    disk.failure = failure
    disk.ready.set()
    done = engine.generate([*ALICE, 7], max_tokens=5, ignore_eos=True)
    assert done.usage.cached_tokens == 0
    assert done.tokens == plain([*ALICE, 7], 5)


def test_what_has_come_into_the_kv_cache_meanwhile_is_used_from_there(engine: Engine, disk: SlowDisk) -> None:
    """Two questions about one text: the one that was computed has left more than the disk has."""
    longer = [*ALICE, *range(200, 220)]
    asked = add(engine, [*longer, 7])
    engine.step()
    place = engine._scheduler.cache.acquire(longer)
    assert place is not None
    engine.model.forward([Rows(place[0], 0, longer, 1)])
    engine._scheduler.cache.release(place[0], longer)
    disk.ready.set()
    assert end_of(finish(engine), asked).usage.cached_tokens == len(longer)


def test_closing_ends_what_is_being_read(tmp_path: Path, disk: SlowDisk) -> None:
    with engine_of(tmp_path) as before:
        before.generate(ALICE, max_tokens=1)
    made = engine_of(tmp_path)
    add(made, [*ALICE, 7])
    made.step()
    assert disk.reading.wait(PATIENCE_S)
    disk.ready.set()
    made.close()
    assert not any(thread.is_alive() for thread in disk.threads)
