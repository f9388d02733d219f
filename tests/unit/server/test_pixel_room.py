"""Who gets room for pictures, who waits, and who is refused."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

import pytest

from foredraft.errors import QueueFullError
from foredraft.server.pixel_room import PixelRoom


def run(scenario: Callable[[PixelRoom], Awaitable[None]]) -> None:
    async def main() -> None:
        await asyncio.wait_for(scenario(PixelRoom(100)), 20)

    asyncio.run(main())


class User:
    """Takes a share, keeps it until it is let go, and shrinks it when told."""

    def __init__(self, room: PixelRoom, pixels: int, most_waiting: int = 9) -> None:
        self.inside = False
        self.let_go = asyncio.Event()
        self.shrinks_to: int | None = None
        self.task = asyncio.create_task(self._use(room, pixels, most_waiting))

    async def _use(self, room: PixelRoom, pixels: int, most_waiting: int) -> None:
        async with room.share(pixels, most_waiting) as share:
            self.inside = True
            try:
                await self.let_go.wait()
                if self.shrinks_to is not None:
                    share.shrink(self.shrinks_to)
                    self.let_go.clear()
                    await self.let_go.wait()
            finally:
                self.inside = False


def inside(*users: User) -> list[bool]:
    return [user.inside for user in users]


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


def test_requests_wait_in_order() -> None:
    async def scenario(room: PixelRoom) -> None:
        users = [User(room, pixels) for pixels in (60, 40, 50, 10, 10)]
        await settle()
        assert inside(*users) == [True, True, False, False, False]
        users[1].let_go.set()
        await settle()  # 40 are free, and 50 are next
        assert inside(*users) == [True, False, False, False, False]
        users[0].let_go.set()
        await settle()
        assert inside(*users) == [False, False, True, True, True]
        for user in users:
            user.let_go.set()
        await asyncio.gather(*(user.task for user in users))

    run(scenario)


def test_what_turned_out_to_be_smaller_makes_room() -> None:
    async def scenario(room: PixelRoom) -> None:
        first, second = User(room, 100), User(room, 90)
        await settle()
        assert inside(first, second) == [True, False]
        first.shrinks_to = 10
        first.let_go.set()
        await settle()
        third = User(room, 1)
        await settle()
        assert inside(first, second, third) == [True, True, False]
        first.let_go.set()
        await settle()
        assert inside(first, second, third) == [False, True, True]

    run(scenario)


def test_one_that_leaves_holds_up_nobody() -> None:
    async def scenario(room: PixelRoom) -> None:
        users = [User(room, pixels) for pixels in (80, 90, 20, 30)]
        await settle()
        users[1].task.cancel()  # while it waits
        await settle()
        assert inside(*users) == [True, False, True, False]
        users[0].let_go.set()
        users[0].task.cancel()  # while it holds
        await settle()
        assert users[3].inside
        users[2].let_go.set()
        users[3].let_go.set()
        users[3].task.cancel()
        await settle()
        with suppress(asyncio.CancelledError):
            await users[3].task
        last = User(room, 100)
        await settle()
        assert last.inside

    run(scenario)


def test_one_that_leaves_as_its_turn_comes_gives_it_on() -> None:
    async def scenario(room: PixelRoom) -> None:
        first, second, third = (User(room, 100) for _ in range(3))
        await settle()
        first.task.cancel()
        await asyncio.sleep(0)  # `first` gives its share to `second`, which has not run yet
        second.task.cancel()
        await settle()
        assert third.inside

    run(scenario)


def test_a_queue_that_is_full_refuses() -> None:
    async def scenario(room: PixelRoom) -> None:
        users = [User(room, 100, most_waiting=1) for _ in range(2)]
        await settle()
        with pytest.raises(QueueFullError, match="1 requests wait until others' images"):
            await User(room, 1, most_waiting=1).task
        async with room.share(0, 1):  # a request without images
            pass
        room.most = 10  # a change of the settings
        users[0].let_go.set()
        await settle()
        assert users[1].inside

    run(scenario)
