"""Searches of the Hub, which may not answer: on threads of their own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress

from foredraft.errors import BackendError, ForedraftError
from foredraft.library import FoundModel

AT_ONCE = 2
"""Searches that run at the same time; others wait."""

WAIT_S = 10.0
"""Seconds after which a search has failed, the time included in which it waited for others."""


class HubError(ForedraftError):
    """The Hub does not answer, or not as it should: the fault is not this server's."""

    code = "hub_error"
    status = 502


class HubSearches:
    """Runs searches so that a Hub that hangs holds up nothing else: the threads of `asyncio.to_thread` are
    shared by all of the server, which waits for them at its end. Used by one event loop.
    """

    def __init__(self) -> None:
        self._places = asyncio.Semaphore(AT_ONCE)

    async def run(self, search: Callable[[], Sequence[FoundModel]]) -> Sequence[FoundModel]:
        """What the search found. Raises HubError, and what else the search raises."""
        try:
            async with asyncio.timeout(WAIT_S):
                await self._places.acquire()
                return await self._begin(search)
        except TimeoutError:
            raise HubError(
                f"The Hub has not answered for {WAIT_S:g} seconds.",
                hint="Check the network, or try again later.",
            ) from None
        except BackendError as error:
            raise HubError(error.message, hint=error.hint) from error

    def _begin(self, search: Callable[[], Sequence[FoundModel]]) -> asyncio.Future[Sequence[FoundModel]]:
        """Search on a thread, which keeps its place until it ends, even if its request has ended."""
        loop = asyncio.get_running_loop()
        reply: asyncio.Future[Sequence[FoundModel]] = loop.create_future()

        def ended(found: Sequence[FoundModel] | Exception) -> None:
            self._places.release()
            if reply.done():
                return
            if isinstance(found, Exception):
                reply.set_exception(found)
            else:
                reply.set_result(found)

        def work() -> None:
            found: Sequence[FoundModel] | Exception
            try:
                found = search()
            except Exception as error:  # noqa: BLE001 - the caller raises it
                found = error
            with suppress(RuntimeError):  # the loop is closed: the server has ended
                loop.call_soon_threadsafe(ended, found)

        threading.Thread(target=work, name="foredraft-search", daemon=True).start()
        return reply
