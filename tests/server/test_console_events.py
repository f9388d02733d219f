"""The stream of what the page shows: what is sent when, to whom, and how it ends."""

from __future__ import annotations

import asyncio
import time
from contextlib import ExitStack
from dataclasses import replace
from itertools import islice
from typing import Any

import httpx
import pytest

from event_streams import following
from foredraft.errors import CapacityError
from foredraft.server.auth import Caller, hash_key
from foredraft.server.console import events, routes
from foredraft.server.console.events import Shared, Topic
from foredraft.server.console.shapes import Numbered, Reply
from foredraft.server.settings import KeySettings, ModelSettings, ServerSettings
from http_server import Running, serving

ALICE, BOB = "ft-alice", "ft-bob"
KEYS = ServerSettings(
    keys=(
        KeySettings(name="alice", hash=hash_key(ALICE), max_concurrent=1),
        KeySettings(name="bob", hash=hash_key(BOB)),
    )
)
SOON = 0.02


class Count(Reply):
    """What the topics of these tests say."""

    n: int
    caller: str = ""


class Script:
    """A topic whose readings are given: numbers, None, or errors; the last one again and again."""

    def __init__(self, *readings: int | Exception | None) -> None:
        self.readings = list(readings)
        self.seen: list[Reply | None] = []

    async def read(self, caller: Caller, sent: Reply | None) -> Reply | None:
        self.seen.append(sent)
        found = self.readings.pop(0) if len(self.readings) > 1 else self.readings[0]
        if isinstance(found, Exception):
            raise found
        return None if found is None else Count(n=found, caller=caller.name)


def register(monkeypatch: pytest.MonkeyPatch, **scripts: Script) -> None:
    def topics(*_: object) -> dict[str, Topic]:
        return {name: Topic(name, SOON, script.read) for name, script in scripts.items()}

    monkeypatch.setattr(routes, "console_topics", topics)


def get(running: Running, query: str, key: str = "none") -> httpx.Response:
    address = f"{running.url}/console/events{query}"
    with httpx.stream("GET", address, headers={"Authorization": f"Bearer {key}"}, timeout=30) as reply:
        assert reply.status_code != 200, "an endless stream"
        reply.read()
    return reply


def error_of(reply: httpx.Response) -> Any:
    return reply.json()["error"]


def test_a_topic_is_what_its_own_path_answers(server: Running) -> None:
    httpx.post(f"{server.url}/v1/models/fake/load", timeout=30)
    with following(server.url, "speculation") as stream:
        name, data = next(stream)
    assert name == "speculation"
    assert data == httpx.get(f"{server.url}/v1/speculation", timeout=30).json()
    assert set(data) >= {"fake"}


def test_only_what_changes_is_sent_and_readers_know_what_was(monkeypatch: pytest.MonkeyPatch) -> None:
    script = Script(1, 1, None, 1, 2)
    register(monkeypatch, count=script)
    with serving() as running, following(running.url, "count") as stream:
        assert [sent.data["n"] for sent in islice(stream, 2)] == [1, 2]
    assert script.seen[:5] == [None, *[Count(n=1, caller="local")] * 4]


def test_several_topics_share_a_stream_and_a_slow_one_holds_up_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def never(caller: Caller, sent: Reply | None) -> Reply | None:
        await asyncio.Event().wait()
        return None

    script = Script(1, 2, 3, 4)
    monkeypatch.setattr(
        routes,
        "console_topics",
        lambda *_: {
            "slow": Topic("slow", SOON, never),
            "one": Topic("one", SOON, script.read),
            "two": Topic("two", SOON, Script(9).read),
        },
    )
    with serving() as running, following(running.url, "slow,one,two,one") as stream:
        found = list(islice(stream, 5))
    assert sorted(sent.data["n"] for sent in found) == [1, 2, 3, 4, 9]
    assert {sent.name for sent in found} == {"one", "two"}


def test_an_error_is_said_once_and_the_topic_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = CapacityError("It is not loaded.", hint="Try again.")
    register(monkeypatch, count=Script(1, broken, broken, 2, 3))
    with serving() as running, following(running.url, "count") as stream:
        first, error, *rest = islice(stream, 4)
    assert [first.data["n"], *(sent.data["n"] for sent in rest)] == [1, 2, 3]
    assert (error.name, error.data["topic"]) == ("error", "count")
    assert error.data["error"]["code"] == "out_of_capacity"
    assert "Try again." in error.data["error"]["message"]


def test_a_defect_ends_the_stream_with_a_number_and_not_with_internals(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    register(monkeypatch, count=Script(1, ValueError("/secret/path")))
    with serving() as running, following(running.url, "count") as stream:
        first, error = list(stream)
    assert first.data["n"] == 1
    assert error.data["error"]["code"] == "internal"
    assert "secret" not in str(error.data)


def test_a_quiet_stream_says_that_it_lives(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "QUIET_S", 0.05)
    register(monkeypatch, count=Script(1))
    with serving() as running, following(running.url, "count") as stream:
        assert [sent.name for sent in islice(stream, 3)] == ["count", ":", ":"]


def test_unknown_topics_are_refused_with_the_valid_ones(server: Running) -> None:
    for query in ("?topics=nonesuch", "?topics=", "?topics=speculation,nonesuch"):
        refused = get(server, query)
        assert refused.status_code == 400
        assert "speculation" in error_of(refused)["message"]
    assert get(server, "").status_code == 400


def test_a_head_request_ends(server: Running) -> None:
    head = httpx.head(f"{server.url}/console/events?topics=speculation", timeout=10)
    assert (head.status_code, head.headers["content-type"][:17]) == (200, "text/event-stream")


def test_streams_are_bounded_and_those_that_ended_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "MOST_STREAMS", 3)
    monkeypatch.setattr(events, "MOST_STREAMS_IN_ALL", 6)
    monkeypatch.setattr(events, "KEPT_FREE", 1)
    register(monkeypatch, count=Script(1))
    eve = KeySettings(name="eve", hash=hash_key("ft-eve"))
    keys = replace(KEYS, keys=(*KEYS.keys, eve), admin_key_hash=hash_key("ft-admin"))
    with serving(settings=keys) as running:
        with ExitStack() as opened:
            keys_used = (ALICE, ALICE, ALICE, BOB, BOB)
            streams = [opened.enter_context(following(running.url, "count", key)) for key in keys_used]
            assert [next(stream).data["n"] for stream in streams] == [1] * 5
            for key in (ALICE, "ft-eve"):
                refused = get(running, "?topics=count", key)
                assert refused.status_code == 429
                assert refused.headers["retry-after"]
                assert "Close some" in error_of(refused)["message"]
            admin = opened.enter_context(following(running.url, "count", "ft-admin"))
            assert next(admin).data["n"] == 1
        for _ in range(100):
            with ExitStack() as again:
                try:
                    stream = again.enter_context(following(running.url, "count", "ft-eve"))
                except httpx.HTTPStatusError:
                    time.sleep(0.05)
                    continue
                assert next(stream).data["caller"] == "eve"
                break
        else:
            pytest.fail("streams that ended count for ever")


def test_an_open_page_takes_no_place_of_a_running_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    register(monkeypatch, count=Script(1))
    with serving(settings=KEYS) as running, following(running.url, "count", ALICE) as stream:
        next(stream)
        body = {"prompt": "one", "max_tokens": 3}
        headers = {"Authorization": f"Bearer {ALICE}"}
        reply = httpx.post(f"{running.url}/v1/completions", json=body, headers=headers, timeout=30)
        assert reply.status_code == 200


def test_a_client_that_leaves_ends_its_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    script = Script(*range(10_000))
    register(monkeypatch, count=script)
    with serving() as running:
        with following(running.url, "count") as stream:
            next(stream)
        before = -1
        for _ in range(100):
            time.sleep(5 * SOON)
            if len(script.seen) == before:
                break
            before = len(script.seen)
        else:
            pytest.fail("the topic is still read")


def test_a_key_that_is_revoked_loses_its_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "KEY_LOOK_S", SOON)
    monkeypatch.setattr("foredraft.server.app.SWEEP_S", SOON)
    register(monkeypatch, count=Script(*range(100_000)))
    later: list[ServerSettings] = []
    with (
        serving(settings=KEYS, reload=lambda: later.pop() if later else None) as running,
        following(running.url, "count", ALICE) as alice,
        following(running.url, "count", BOB) as bob,
    ):
        next(alice), next(bob)
        later.append(replace(KEYS, keys=KEYS.keys[1:], models={"fake": ModelSettings(path="fake")}))
        *_, last = alice
        assert last.name == "error"
        assert last.data["error"]["code"] == "invalid_api_key"
        assert next(bob).data["caller"] == "bob"


def test_an_open_stream_does_not_hold_up_the_end_of_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    register(monkeypatch, count=Script(1))
    with ExitStack() as page:
        with serving() as running:
            stream = page.enter_context(following(running.url, "count"))
            next(stream)
            began = time.monotonic()
        assert time.monotonic() - began < 5
        assert list(stream) == [], "it ended as a complete answer"


def test_what_is_the_same_for_all_is_read_once_for_all() -> None:
    reads: list[int] = []

    async def read() -> Reply:
        reads.append(1)
        await asyncio.sleep(0.01)
        return Count(n=len(reads))

    async def ask() -> list[Reply | None]:
        shared = Shared(read, 60)
        caller = Caller("local", "")
        return list(await asyncio.gather(*(shared.recent(caller, None) for _ in range(5))))

    assert asyncio.run(ask()) == [Count(n=1)] * 5


class State(Numbered):
    """What is asked for and streamed."""

    n: int


def test_who_asks_for_it_now_shares_a_reading_that_begins_after_that() -> None:
    reads: list[int] = []

    async def read() -> State:
        reads.append(1)
        await asyncio.sleep(0.01)
        return State(n=len(reads))

    async def ask() -> tuple[State, list[State], State]:
        shared = Shared(read, 60)
        first = asyncio.create_task(shared.now())
        await asyncio.sleep(0.005)
        later = await asyncio.gather(*(shared.now() for _ in range(5)))
        return await first, list(later), await shared.recent(Caller("local", ""), None)

    first, later, followed = asyncio.run(ask())
    assert [first.n, *(one.n for one in later), followed.n] == [1, *[2] * 5, 2]
    assert first.revision < later[0].revision == followed.revision


def test_a_state_that_came_back_is_sent_again_if_somebody_was_told_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As a stream that was sent the first has not seen the second."""
    state = [1]

    async def read() -> State:
        return State(n=state[0])

    shared = Shared(read, 0.0)
    following_is_at: list[Reply] = []

    async def follow(caller: Caller, sent: Reply | None) -> Reply | None:
        if following_is_at:  # between two looks of the stream
            state[0] = 2
            following_is_at.append(await shared.now())
            state[0] = 1
        following_is_at.append(await shared.recent(caller, sent))
        return following_is_at[-1]

    monkeypatch.setattr(routes, "console_topics", lambda *_: {"state": Topic("state", SOON, follow)})
    with serving() as running, following(running.url, "state") as stream:
        before, after = islice(stream, 2)
    asked = following_is_at[1]
    assert isinstance(asked, State)
    assert (before.data["n"], asked.n, after.data["n"]) == (1, 2, 1)
    assert before.data["revision"] < asked.revision < after.data["revision"]
