"""How often a key may ask: a token bucket and a count of running requests for each caller.

One event loop uses it: nothing here waits, so nothing needs a lock.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType

from foredraft.errors import RateLimitError, RequestError
from foredraft.server.auth import Caller

MINUTE = 60.0

ROUNDING = 1e-6
"""Of a request: whoever waits as long as they were told is not refused for arithmetic."""

BUSY_RETRY_S = 1.0
"""When to try again while other requests of the key run: nobody knows when they end."""


@dataclass(slots=True)
class _Account:
    """What is known of one caller: `spent` of its requests at the time `at`, and how many are running."""

    at: float
    spent: float = 0.0
    running: int = 0

    def check_room(self, most: int | None, more: int) -> None:
        """Raises RateLimitError where so many more would be too many at once."""
        if most is not None and self.running + more > most:
            raise RateLimitError(
                f"{self.running} requests of this key are running, and at most {most} may.",
                retry_after=BUSY_RETRY_S,
                hint="Wait until one of them has ended.",
            )


class Permit:
    """Leave to run one request. Give it back once it has ended: `release`, or leave the `with` block.

    `most`: how many of its caller may run at once, None is no limit.
    """

    __slots__ = ("_account", "_count", "_most")

    def __init__(self, account: _Account, most: int | None) -> None:
        self._account: _Account | None = account
        self._most = most
        self._count = 1
        account.running += 1

    def grow(self, more: int) -> None:
        """The request has so many more parts that run at once. Raises RateLimitError, and RequestError where
        waiting would not help.
        """
        if self._account is None:
            return
        if self._most is not None and self._count + more > self._most:
            raise RequestError(
                f"{self._count + more} answers at once are more than the {self._most} this key may have.",
                hint="Ask for fewer in one request.",
            )
        self._account.check_room(self._most, more)
        self._account.running += more
        self._count += more

    def release(self) -> None:
        """The request has ended. Again: nothing."""
        if self._account is not None:
            self._account.running -= self._count
            self._account = None

    def __enter__(self) -> Permit:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.release()


class RateLimiter:
    """Admits requests within each caller's limits.

    The bucket of a caller with N requests a minute holds N and gets one back every 60/N seconds: N at once
    after a pause, N a minute in the long run. A request that is refused costs nothing. Memory: one small
    record for each caller with a request running or within the last minute. `clock`: seconds, never back.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._accounts: dict[str, _Account] = {}
        self._swept = clock()

    def __len__(self) -> int:
        return len(self._accounts)

    def admit(self, caller: Caller) -> Permit:
        """Leave to run a request of this caller. Raises RateLimitError with the seconds to wait."""
        now = self._clock()
        self._sweep(now)
        account = self._accounts.get(caller.name) or _Account(now)
        account.check_room(caller.max_concurrent, 1)
        account.spent = self._spent(account, caller.requests_per_minute, now)
        account.at = now
        self._accounts[caller.name] = account
        return Permit(account, caller.max_concurrent)

    def _spent(self, account: _Account, per_minute: int | None, now: float) -> float:
        """What the caller will have spent with this request. Raises RateLimitError."""
        if per_minute is None:
            return 0.0
        spent = max(0.0, account.spent - (now - account.at) * per_minute / MINUTE)
        # The limit may have been lowered since: nobody waits for more than an empty bucket.
        over = min(spent, per_minute) + 1 - per_minute
        if over > ROUNDING:
            wait = over * MINUTE / per_minute
            raise RateLimitError(
                f"This key may send {per_minute} requests a minute.",
                retry_after=wait,
                hint=f"Try again in {wait:.1f} seconds.",
            )
        return spent + 1

    def _sweep(self, now: float) -> None:
        """Once a minute, forget who has nothing running and, after a minute, a full bucket."""
        if now - self._swept < MINUTE:
            return
        self._swept = now
        self._accounts = {
            name: account
            for name, account in self._accounts.items()
            if account.running or now - account.at < MINUTE
        }
