"""Work on other threads that is cancelled, or of which some fails, while other work has begun."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from foredraft.server import picture_parts
from foredraft.server.begun import results_of
from foredraft.server.image_settings import ImageSettings
from foredraft.server.pixel_room import PixelRoom
from foredraft.testing import FakeVision


def test_in_order() -> None:
    async def main() -> list[int]:
        with ThreadPoolExecutor(2) as threads:
            return await results_of([threads.submit(pow, 2, power) for power in range(5)])

    assert asyncio.run(main()) == [1, 2, 4, 8, 16]


@pytest.mark.parametrize("fails", [True, False])
def test_what_has_begun_ends_first_and_the_rest_never_begins(fails: bool) -> None:
    began, may_end, ended, later = (threading.Event() for _ in range(4))

    def work() -> None:
        began.set()
        assert may_end.wait(10)
        ended.set()

    def broken() -> None:
        assert began.wait(10)
        raise ValueError("broken")

    async def main() -> None:
        with ThreadPoolExecutor(1) as threads, ThreadPoolExecutor(1) as others:
            futures = [threads.submit(work), threads.submit(later.set)]
            if fails:
                futures.append(others.submit(broken))
            task = asyncio.create_task(results_of(futures))
            assert await asyncio.to_thread(began.wait, 10)
            if not fails:
                task.cancel()
            await asyncio.sleep(0.1)
            assert not task.done()
            may_end.set()
            with pytest.raises(ValueError if fails else asyncio.CancelledError):
                await asyncio.wait_for(task, 10)
            assert ended.is_set()

    asyncio.run(main())
    assert not later.is_set()


def test_room_comes_back_when_a_picture_that_was_begun_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    began, may_end = threading.Event(), threading.Event()

    def slow(*_: object) -> None:
        began.set()
        assert may_end.wait(10)

    monkeypatch.setattr(picture_parts, "_picture_at", slow)
    message = {"role": "user", "content": [picture_parts.image_part("data:,", "here")]}

    async def read(room: PixelRoom, threads: ThreadPoolExecutor) -> None:
        async with room.share(100, 1):
            await picture_parts.with_pictures([message], FakeVision(), ImageSettings(), threads, {})

    async def main() -> None:
        room = PixelRoom(100)
        with ThreadPoolExecutor(1) as threads:
            task = asyncio.create_task(read(room, threads))
            assert await asyncio.to_thread(began.wait, 10)
            task.cancel()
            other = asyncio.create_task(room.share(100, 1).__aenter__())
            await asyncio.sleep(0.1)
            assert not other.done()
            may_end.set()
            await asyncio.wait_for(other, 10)

    asyncio.run(main())
