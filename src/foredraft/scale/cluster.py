"""Limits of keys for the whole cluster: several fronts, and one process that counts.

`Limits` counts, in one replica of a deployment of its own; each front has a `ClusterLimiter` in its gate.
What they send each other are values: an error of Foredraft would arrive as one of Ray.

A front that dies says nothing. While it has requests running, a front says every `BEAT_S` which ones; those
of a front that was silent for `EXPIRY_S` count no longer. While nothing counts for the cluster, each front
counts for itself: a key's limits then hold for each front, as they do for servers that know nothing of one
another.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from foredraft.errors import ForedraftError, RateLimitError, RequestError
from foredraft.server.auth import Caller
from foredraft.server.rates import Permission, Permit, RateLimiter

BEAT_S = 5.0
EXPIRY_S = 30.0

ANSWER_S = 2.0
"""Seconds that a front waits for who counts; far more than it takes, so that it is away."""

AWAY_S = 5.0
"""Seconds before a front asks again that was not answered."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a request is not let in. `retry_after`: seconds, None if waiting would not help."""

    message: str
    hint: str | None
    retry_after: float | None

    @classmethod
    def of(cls, error: ForedraftError) -> Refusal:
        """The refusal that `error` says."""
        return cls(error.message, error.hint, getattr(error, "retry_after", None))

    def error(self) -> ForedraftError:
        """What `RateLimiter` or a permit of this process would have raised."""
        if self.retry_after is None:
            return RequestError(self.message, hint=self.hint)
        return RateLimitError(self.message, retry_after=self.retry_after, hint=self.hint)


class Counting(Protocol):
    """Who counts, as a front sees it."""

    async def admit(
        self, front: str, number: int, caller: Caller, over: frozenset[int] = frozenset()
    ) -> Refusal | None:
        """Let a caller's request in, which this front calls `number`. `over`: requests whose release may
        still be on its way.
        """
        ...

    async def grow(self, front: str, number: int, more: int) -> Refusal | None:
        """As `Permission.grow`."""
        ...

    async def release(self, front: str, number: int) -> None:
        """As `Permission.release`."""
        ...

    async def alive(self, front: str, running: frozenset[int], last: int) -> None:
        """The front is alive. Of all requests up to the number `last` these are running, and no others,
        whatever was lost on the way.
        """
        ...


# --- who counts ----------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Front:
    heard: float
    permits: dict[int, Permit] = field(default_factory=dict)


class Limits:
    """Counts for all fronts (`Counting`). Nothing here waits, so one event loop needs no lock. `clock`
    returns monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._limiter = RateLimiter(clock)
        self._fronts: dict[str, _Front] = {}

    async def admit(
        self, front: str, number: int, caller: Caller, over: frozenset[int] = frozenset()
    ) -> Refusal | None:
        """As `Counting.admit`."""
        self._drop_silent()
        known = self._hear(front)
        for ended in over:
            _release(known, ended)
        try:
            known.permits[number] = self._limiter.admit(caller)
        except RateLimitError as error:
            return Refusal.of(error)
        return None

    async def grow(self, front: str, number: int, more: int) -> Refusal | None:
        """As `Counting.grow`. A request from before this process began counts as one that is over."""
        permit = self._hear(front).permits.get(number)
        try:
            if permit is not None:
                await permit.grow(more)
        except (RateLimitError, RequestError) as error:
            return Refusal.of(error)
        return None

    async def release(self, front: str, number: int) -> None:
        """As `Counting.release`."""
        _release(self._hear(front), number)

    async def alive(self, front: str, running: frozenset[int], last: int) -> None:
        """As `Counting.alive`."""
        known = self._hear(front)
        for number in [one for one in known.permits if one <= last and one not in running]:
            _release(known, number)

    def _hear(self, front: str) -> _Front:
        known = self._fronts.setdefault(front, _Front(0.0))
        known.heard = self._clock()
        return known

    def _drop_silent(self) -> None:
        now = self._clock()
        for name, front in list(self._fronts.items()):
            if now - front.heard > EXPIRY_S:
                for number in list(front.permits):
                    _release(front, number)
                del self._fronts[name]


def _release(front: _Front, number: int) -> None:
    permit = front.permits.pop(number, None)
    if permit is not None:
        permit.release()


def limits_deployment() -> Any:
    """`Limits` as an application of Ray Serve that a front is bound to, which gives its handle to `Remote`.
    It has one replica: two would count apart.
    """
    from ray import serve

    deployed = serve.deployment(
        name="limits", num_replicas=1, max_ongoing_requests=10_000, ray_actor_options={"num_cpus": 0}
    )
    return deployed(Limits).bind()


# --- a front -------------------------------------------------------------------------------------------


class Remote:
    """`Counting` behind a handle of Ray Serve's."""

    def __init__(self, handle: Any) -> None:
        self._handle = handle

    async def admit(
        self, front: str, number: int, caller: Caller, over: frozenset[int] = frozenset()
    ) -> Refusal | None:
        """As `Counting.admit`."""
        refusal: Refusal | None = await self._handle.admit.remote(front, number, caller, over)
        return refusal

    async def grow(self, front: str, number: int, more: int) -> Refusal | None:
        """As `Counting.grow`."""
        refusal: Refusal | None = await self._handle.grow.remote(front, number, more)
        return refusal

    async def release(self, front: str, number: int) -> None:
        """As `Counting.release`."""
        await self._handle.release.remote(front, number)

    async def alive(self, front: str, running: frozenset[int], last: int) -> None:
        """As `Counting.alive`."""
        await self._handle.alive.remote(front, running, last)


Answer = TypeVar("Answer")


class _AwayError(Exception):
    """Nothing counts for the cluster at the moment."""


class ClusterLimiter:
    """Lets requests of one front in; `admit` is a `rates.Admit`. A caller without limits is not counted."""

    def __init__(self, counting: Counting, clock: Callable[[], float] = time.monotonic) -> None:
        self._counting = counting
        self._clock = clock
        self._name = uuid.uuid4().hex
        self._own = RateLimiter(clock)
        self._away_until = float("-inf")
        self._numbers = 0
        self._running: set[int] = set()
        self._over: set[int] = set()
        """Those whose release has not arrived yet, as far as this front knows."""
        self._tasks: set[asyncio.Task[Any]] = set()
        self._beating = False

    async def admit(self, caller: Caller) -> Permission:
        """Raises RateLimitError."""
        if caller.requests_per_minute is None and caller.max_concurrent is None:
            return self._own.admit(caller)
        if self._clock() < self._away_until:
            return self._own.admit(caller)
        self._numbers += 1
        number = self._numbers
        self._running.add(number)
        asking = self._start(self._counting.admit(self._name, number, caller, frozenset(self._over)))
        try:
            refusal = await self._answer(asking)
        except _AwayError:
            self._let_go(asking, number)
            return self._own.admit(caller)
        except BaseException:  # cancelled: it may be let in all the same
            self._let_go(asking, number)
            raise
        if refusal is not None:
            self._running.discard(number)
            raise refusal.error()
        self._keep_beating()
        return _ClusterPermit(self, number)

    async def grow(self, number: int, more: int) -> None:
        """Of a permit. While nothing counts, the answer is allowed."""
        try:
            refusal = await self._answer(self._start(self._counting.grow(self._name, number, more)))
        except _AwayError:
            return
        if refusal is not None:
            raise refusal.error()

    def release(self, number: int) -> None:
        """Of a permit. Does not wait."""
        self._running.discard(number)
        self._over.add(number)
        self._start(self._say_over(number))

    async def _say_over(self, number: int) -> None:
        if await self._tell(lambda: self._counting.release(self._name, number)):
            self._over.discard(number)

    async def _answer(self, asking: asyncio.Task[Answer]) -> Answer:
        """Raises _AwayError."""
        try:
            return await asyncio.wait_for(asyncio.shield(asking), ANSWER_S)
        except Exception as error:  # whatever Ray raises where a process has ended
            self._away_until = self._clock() + AWAY_S
            logger.warning("Limits are not counted for all fronts (%s); this front counts for itself.", error)
            raise _AwayError from error

    def _let_go(self, asking: asyncio.Task[Refusal | None], number: int) -> None:
        """Nothing waits for the answer any more: give back what it may have let in."""
        asking.add_done_callback(lambda _: self.release(number))
        self._keep_beating()

    def _keep_beating(self) -> None:
        if not self._beating:
            self._beating = True
            self._start(self._beat())

    async def _beat(self) -> None:
        """Say which requests are running, until none is and that has arrived."""
        while not await self._tell(self._alive) or self._running:
            await asyncio.sleep(BEAT_S)
        self._beating = False

    async def _alive(self) -> None:
        over = self._over.copy()
        await self._counting.alive(self._name, frozenset(self._running), self._numbers)
        self._over -= over

    async def _tell(self, say: Callable[[], Awaitable[None]]) -> bool:
        """Say something that needs no answer; whether it arrived. The next beat makes up for what did not."""
        try:
            await asyncio.wait_for(say(), ANSWER_S)
        except Exception as error:  # noqa: BLE001 - as in `_answer`
            logger.debug("The limits of all fronts are not counted together: %s", error)
            return False
        return True

    def _start(self, work: Any) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = asyncio.ensure_future(work)
        self._tasks.add(task)  # the event loop itself keeps no task alive
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # nothing waited for it


class _ClusterPermit(Permission):
    __slots__ = ("_limiter", "_number")

    def __init__(self, limiter: ClusterLimiter, number: int) -> None:
        self._limiter = limiter
        self._number: int | None = number

    async def grow(self, more: int) -> None:
        if self._number is not None and more:
            await self._limiter.grow(self._number, more)

    def release(self) -> None:
        if self._number is not None:
            self._limiter.release(self._number)
            self._number = None
