"""Limits of keys over several fronts, without Ray between them: what is lost, late or away, and who dies."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Awaitable, Callable, Iterator

import pytest
from starlette.types import Message, Receive, Scope, Send

from foredraft.errors import RateLimitError, RequestError
from foredraft.scale import cluster
from foredraft.scale.cluster import AWAY_S, EXPIRY_S, ClusterLimiter, Limits, Refusal
from foredraft.server.auth import Caller
from foredraft.server.gate import Gate
from foredraft.server.rates import Permission, RateLimiter
from foredraft.server.settings import ServerSettings

BEAT_S = 0.02


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "BEAT_S", BEAT_S)
    monkeypatch.setattr(cluster, "ANSWER_S", 0.5)


class Clock:
    """Seconds, set by the test."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Wire:
    """`Limits` as one front reaches it. `away`: calls fail. `stuck`: they do not return. `loses`: releases do
    not arrive.
    """

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.away = False
        self.stuck: asyncio.Event | None = None
        self.loses = False
        self.asked = 0

    async def _pass(self) -> None:
        self.asked += 1
        if self.away:
            raise ConnectionError("the process has ended")
        if self.stuck is not None:
            await self.stuck.wait()
        await asyncio.sleep(0)

    async def admit(
        self, front: str, number: int, caller: Caller, over: frozenset[int] = frozenset()
    ) -> Refusal | None:
        await self._pass()
        back = await self.limits.admit(front, number, pickle.loads(pickle.dumps(caller)), over)
        refusal: Refusal | None = pickle.loads(pickle.dumps(back))
        return refusal

    async def grow(self, front: str, number: int, more: int) -> Refusal | None:
        await self._pass()
        return await self.limits.grow(front, number, more)

    async def release(self, front: str, number: int) -> None:
        await self._pass()
        if not self.loses:
            await self.limits.release(front, number)

    async def alive(self, front: str, running: frozenset[int], last: int) -> None:
        await self._pass()
        await self.limits.alive(front, running, last)


class Two:
    """Two fronts of one cluster."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.limits = Limits(self.clock)
        self.wires = Wire(self.limits), Wire(self.limits)
        self.first, self.second = (ClusterLimiter(wire, self.clock) for wire in self.wires)


def caller(rate: int | None = None, concurrent: int | None = None) -> Caller:
    return Caller("alice", "team", requests_per_minute=rate, max_concurrent=concurrent)


def in_loop(test: Callable[[Two], Awaitable[None]]) -> None:
    async def run() -> None:
        await test(Two())
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()

    asyncio.run(run())


async def refused(front: ClusterLimiter, who: Caller) -> RateLimitError:
    with pytest.raises(RateLimitError) as error:
        await front.admit(who)
    return error.value


async def soon(holds: Callable[[], Awaitable[bool]]) -> None:
    for _ in range(200):
        if await holds():
            return
        await asyncio.sleep(BEAT_S)
    raise AssertionError("it does not come to hold")


async def admits(front: ClusterLimiter, who: Caller) -> bool:
    try:
        (await front.admit(who)).release()
    except RateLimitError:
        return False
    return True


def test_fronts_share_a_keys_rate_and_say_what_one_server_says() -> None:
    async def test(two: Two) -> None:
        who = caller(rate=3)
        for front in (two.first, two.second, two.first):
            (await front.admit(who)).release()
        alone = RateLimiter(two.clock)
        for _ in range(3):
            alone.admit(who)
        with pytest.raises(RateLimitError) as expected:
            alone.admit(who)
        said = await refused(two.second, who)
        assert str(said) == str(expected.value)
        assert said.retry_after == expected.value.retry_after == 20
        two.clock.now += 20
        assert await admits(two.second, who)

    in_loop(test)


def test_fronts_share_a_keys_running_requests() -> None:
    async def test(two: Two) -> None:
        who = caller(concurrent=2)
        one, other = await two.first.admit(who), await two.second.admit(who)
        assert "2 requests with this key are running; the limit is 2." in str(await refused(two.first, who))
        one.release()
        one.release()
        assert await admits(two.first, who)  # at once: the client may have waited for the end of the first
        await soon(lambda: admits(two.second, who))
        await two.second.admit(who)
        await refused(two.first, who)
        other.release()

    in_loop(test)


def test_each_answer_of_a_request_counts() -> None:
    async def test(two: Two) -> None:
        who = caller(concurrent=4)
        first, second = await two.first.admit(who), await two.second.admit(who)
        await first.grow(2)
        await first.grow(0)
        with pytest.raises(RateLimitError, match="limit is 4"):
            await second.grow(1)
        with pytest.raises(RequestError, match="5 answers at once exceed this key's limit of 4"):
            await second.grow(4)
        first.release()
        await two.second.admit(caller(rate=1))  # what was said before has arrived
        await second.grow(2)

    in_loop(test)


def test_the_requests_of_a_front_that_died_count_no_longer() -> None:
    async def test(two: Two) -> None:
        who = caller(concurrent=1)
        await two.first.admit(who)
        two.wires[0].away = True  # it says nothing more
        await asyncio.sleep(3 * BEAT_S)
        two.clock.now += EXPIRY_S - 1
        await refused(two.second, who)
        two.clock.now += 2
        assert await admits(two.second, who)

    in_loop(test)


def test_a_front_with_a_long_request_is_not_taken_for_dead() -> None:
    async def test(two: Two) -> None:
        who = caller(concurrent=1)
        held = await two.first.admit(who)
        for _ in range(4):
            two.clock.now += EXPIRY_S - 1
            await asyncio.sleep(3 * BEAT_S)
        await refused(two.second, who)
        held.release()

    in_loop(test)


def test_a_release_that_is_lost_is_made_up_for() -> None:
    async def test(two: Two) -> None:
        who = caller(concurrent=1)
        two.wires[0].loses = True
        (await two.first.admit(who)).release()
        await soon(lambda: admits(two.second, who))

    in_loop(test)


def test_a_beat_says_nothing_of_requests_that_came_after_it() -> None:
    async def test(two: Two) -> None:
        who = caller(concurrent=1)
        assert await two.limits.admit("front", 1, who) is None
        await two.limits.alive("front", frozenset(), 0)
        assert await two.limits.admit("front", 2, who) is not None
        await two.limits.alive("front", frozenset(), 2)
        assert await two.limits.admit("front", 3, who) is None

    in_loop(test)


@pytest.mark.parametrize("how", ["fails", "hangs"])
def test_each_front_counts_for_itself_while_nobody_counts_for_all(how: str) -> None:
    async def test(two: Two) -> None:
        who = caller(rate=2)
        for wire in two.wires:
            wire.away, wire.stuck = how == "fails", asyncio.Event()
        for front in (two.first, two.second):
            (await front.admit(who)).release()
            (await front.admit(who)).release()
            await refused(front, who)
        asked = two.wires[0].asked
        await refused(two.first, who)
        assert two.wires[0].asked <= asked + 1  # at most a beat: requests do not wait again and again
        for wire in two.wires:
            wire.away = False
            assert wire.stuck is not None
            wire.stuck.set()
        await asyncio.sleep(3 * BEAT_S)
        two.clock.now += 600 + AWAY_S
        (await two.first.admit(who)).release()
        (await two.second.admit(who)).release()
        await refused(two.first, who)

    in_loop(test)


def test_a_request_goes_on_if_who_counts_has_been_started_again() -> None:
    async def test(two: Two) -> None:
        who = caller(concurrent=2)
        before = await two.first.admit(who)
        two.wires[0].limits = Limits(two.clock)
        await before.grow(1)
        before.release()
        assert await admits(two.first, who)

    in_loop(test)


def test_a_client_that_leaves_while_it_is_let_in_does_not_count() -> None:
    async def test(two: Two) -> None:
        who = caller(concurrent=1)
        two.wires[0].stuck = gate = asyncio.Event()
        coming = asyncio.create_task(two.first.admit(who))
        await asyncio.sleep(BEAT_S)
        coming.cancel()
        with pytest.raises(asyncio.CancelledError):
            await coming
        two.wires[0].stuck = None
        gate.set()
        await soon(lambda: admits(two.second, who))

    in_loop(test)


def test_callers_without_limits_ask_nobody() -> None:
    async def test(two: Two) -> None:
        for _ in range(5):
            permit = await two.first.admit(caller())
            await permit.grow(3)
        assert two.wires[0].asked == 0

    in_loop(test)


def test_a_front_without_requests_is_silent() -> None:
    async def test(two: Two) -> None:
        (await two.first.admit(caller(concurrent=1))).release()
        await asyncio.sleep(5 * BEAT_S)
        asked = two.wires[0].asked
        await asyncio.sleep(5 * BEAT_S)
        assert two.wires[0].asked == asked

    in_loop(test)


# --- the gate ------------------------------------------------------------------------------------------


class Counted(Permission):
    """A permission that knows whether it was given back."""

    released = False

    async def grow(self, more: int) -> None:
        raise AssertionError

    def release(self) -> None:
        self.released = True


async def asked(gate: Gate, path: str) -> tuple[int, dict[bytes, bytes]]:
    """The status and headers of an answer to GET."""
    sent: list[Message] = []

    async def receive() -> Message:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Message) -> None:
        sent.append(message)

    headers = [(b"host", b"localhost")]
    await gate({"type": "http", "method": "GET", "path": path, "headers": headers}, receive, send)
    return sent[0]["status"], dict(sent[0]["headers"])


async def answering(scope: Scope, receive: Receive, send: Send) -> None:
    assert not scope["state"]["visit"].permit.released
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b""})


@pytest.fixture
def permits() -> Iterator[list[Counted]]:
    made: list[Counted] = []
    yield made
    assert all(permit.released for permit in made)


def test_the_gate_asks_who_counts(permits: list[Counted]) -> None:
    async def admit(who: Caller) -> Permission:
        await asyncio.sleep(0)
        if len(permits) == 2:
            raise RateLimitError("Too many.", retry_after=3.2, hint="Wait.")
        permits.append(Counted())
        return permits[-1]

    gate = Gate(answering, lambda: ServerSettings(models={}), admit=admit)

    async def run() -> None:
        for _ in range(2):
            assert (await asked(gate, "/v1/models"))[0] == 200
        status, headers = await asked(gate, "/v1/models")
        assert status == 429
        assert headers[b"retry-after"] == b"4"

    asyncio.run(run())
    assert len(permits) == 2
