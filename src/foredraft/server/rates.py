"""Rate limits: a token bucket and a count of running requests for each caller.

Used by one event loop: nothing here waits, so no lock is needed. Several servers that count together ask one
process that holds the `RateLimiter`; `Admit` and `Permission` are what they share with it.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol, TypeAlias

from foredraft.errors import RateLimitError, RequestError
from foredraft.server.auth import Caller

MINUTE = 60.0

ROUNDING = 1e-6
"""Tolerance, in requests: a client that waits exactly as long as told is not refused because of rounding."""

BUSY_RETRY_S = 1.0
"""Seconds to wait if other requests of the key are running, whose end is unknown."""


@dataclass(slots=True)
class _Account:
    """State of one caller: the requests `spent` from its bucket at the time `at`, and the number running."""

    at: float
    spent: float = 0.0
    running: int = 0

    def check_room(self, most: int | None, more: int) -> None:
        """Raises RateLimitError if `more` further answers would exceed the limit."""
        if most is not None and self.running + more > most:
            raise RateLimitError(
                f"{self.running} requests with this key are running; the limit is {most}.",
                retry_after=BUSY_RETRY_S,
                hint="Wait until one of them has finished.",
            )


class Growing(Protocol):
    """A permission as who answers the request sees it."""

    async def grow(self, more: int) -> None:
        """As `Permission.grow`."""
        ...


class Permission(ABC):
    """To run one request. Return it when the request has ended, by `release` or by leaving the `with`
    block.
    """

    __slots__ = ()

    @abstractmethod
    async def grow(self, more: int) -> None:
        """Count `more` further answers of the request as running. Raises RateLimitError, or RequestError if
        waiting would not help.
        """

    @abstractmethod
    def release(self) -> None:
        """The request has ended. Calling it again has no effect."""

    def __enter__(self) -> Permission:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.release()


Admit: TypeAlias = Callable[[Caller], Awaitable[Permission]]
"""Lets a caller's request in. Raises RateLimitError with the seconds to wait."""


class Permit(Permission):
    """A permission of this process. `most`: maximum running requests of the caller, None for no limit."""

    __slots__ = ("_account", "_count", "_most")

    def __init__(self, account: _Account, most: int | None) -> None:
        self._account: _Account | None = account
        self._most = most
        self._count = 1
        account.running += 1

    async def grow(self, more: int) -> None:
        """As `Permission.grow`."""
        if self._account is None:
            return
        if self._most is not None and self._count + more > self._most:
            raise RequestError(
                f"{self._count + more} answers at once exceed this key's limit of {self._most}.",
                hint="Request fewer answers at once.",
            )
        self._account.check_room(self._most, more)
        self._account.running += more
        self._count += more

    def release(self) -> None:
        """As `Permission.release`."""
        if self._account is not None:
            self._account.running -= self._count
            self._account = None


class RateLimiter:
    """Admits requests within each caller's limits.

    The bucket of a caller with N requests a minute has room for N and regains one every 60/N seconds: N at
    once after a pause, N a minute in the long run. A refused request does not count. Memory: one small record
    for each caller with a request that is running or started within the last minute. `clock` returns
    monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._accounts: dict[str, _Account] = {}
        self._swept = clock()

    def __len__(self) -> int:
        return len(self._accounts)

    def admit(self, caller: Caller) -> Permit:
        """A permit for a request of this caller. Raises RateLimitError with the seconds to wait."""
        now = self._clock()
        self._sweep(now)
        account = self._accounts.get(caller.name) or _Account(now)
        account.check_room(caller.max_concurrent, 1)
        account.spent = self._spent(account, caller.requests_per_minute, now)
        account.at = now
        self._accounts[caller.name] = account
        return Permit(account, caller.max_concurrent)

    def _spent(self, account: _Account, per_minute: int | None, now: float) -> float:
        """The caller's spent requests including this one. Raises RateLimitError."""
        if per_minute is None:
            return 0.0
        spent = max(0.0, account.spent - (now - account.at) * per_minute / MINUTE)
        # The limit may have been lowered: never wait for more than an empty bucket to refill.
        over = min(spent, per_minute) + 1 - per_minute
        if over > ROUNDING:
            wait = over * MINUTE / per_minute
            raise RateLimitError(
                f"This key is limited to {per_minute} requests a minute.",
                retry_after=wait,
                hint=f"Try again in {wait:.1f} seconds.",
            )
        return spent + 1

    def _sweep(self, now: float) -> None:
        """Once a minute, remove callers without running requests whose bucket is full again."""
        if now - self._swept < MINUTE:
            return
        self._swept = now
        self._accounts = {
            name: account
            for name, account in self._accounts.items()
            if account.running or now - account.at < MINUTE
        }
