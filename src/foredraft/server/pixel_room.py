"""A bound on the pictures of all requests together, so that many that are allowed do not exhaust memory."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from foredraft.errors import QueueFullError


class PixelRoom:
    """The pixels that decoded pictures may have, of all requests at once, or the images that may be fetched.
    Requests wait for room in the order
    in which they came. Used by one event loop.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self._taken = 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    @asynccontextmanager
    async def share(self, pixels: int, most_waiting: int) -> AsyncIterator[Share]:
        """Wait for room for a number of pixels, at most all of it, and give it back at the end. 0 does not
        wait.

        Raises QueueFullError if `most_waiting` others wait already.
        """
        pixels = min(pixels, self.most)
        if pixels:
            await self._take(pixels, most_waiting)
        share = Share(self, pixels)
        try:
            yield share
        finally:
            share.shrink(0)

    async def _take(self, pixels: int, most_waiting: int) -> None:
        if not self._waiting and self._fits(pixels):
            self._taken += pixels
            return
        if len(self._waiting) >= most_waiting:
            raise QueueFullError(
                f"{len(self._waiting)} requests wait until others' images have been read; at most "
                f"{most_waiting} may.",
                hint="Send the request again later.",
            )
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiting = (pixels, turn)
        self._waiting.append(waiting)
        try:
            await turn
        except asyncio.CancelledError:
            if waiting in self._waiting:
                self._waiting.remove(waiting)
                self._admit()
            elif not turn.cancelled():  # its turn came at the same moment
                self.give(pixels)
            raise

    def _fits(self, pixels: int) -> bool:
        return not self._taken or self._taken + pixels <= self.most

    def give(self, pixels: int) -> None:
        """Give back a number of pixels."""
        self._taken -= pixels
        self._admit()

    def _admit(self) -> None:
        while self._waiting and self._fits(self._waiting[0][0]):
            pixels, turn = self._waiting.popleft()
            if not turn.cancelled():
                self._taken += pixels
                turn.set_result(None)


class Share:
    """What a request has of the room."""

    def __init__(self, room: PixelRoom, pixels: int) -> None:
        self._room = room
        self._pixels = pixels

    def shrink(self, pixels: int) -> None:
        """Keep at most this number of pixels, and give back the rest."""
        given = max(self._pixels - pixels, 0)
        self._pixels -= given
        self._room.give(given)
