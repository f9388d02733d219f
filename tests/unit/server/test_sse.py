"""Events on their way to a client: pieces as they are, and nothing left behind."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

import pytest

from foredraft.errors import BackendError
from foredraft.server.sse import sse, stream_response


async def body_of(events: AsyncIterator[str]) -> list[str]:
    return [str(piece) async for piece in stream_response(events).body_iterator]


def test_each_piece_is_written_at_once_and_nothing_is_not_written() -> None:
    async def events() -> AsyncIterator[str]:
        for text in ("a", "", "bcd", "", "e"):
            yield text

    assert asyncio.run(body_of(events())) == ["a", "bcd", "e"]


def test_an_error_is_the_last_event() -> None:
    async def events() -> AsyncIterator[str]:
        yield "a"
        raise BackendError("It broke.")

    first, last = asyncio.run(body_of(events()))
    assert first == "a"
    assert last.startswith('data: {"error":{"message":"It broke."')


def test_nothing_is_nothing() -> None:
    async def events() -> AsyncIterator[str]:
        for text in "":
            yield text

    assert asyncio.run(body_of(events())) == []


BREAKS = "".join(char for char in map(chr, range(0x3000)) if len(f"a{char}b".splitlines()) > 1)
"""Every character that some client takes for the end of a line."""


def test_an_event_is_one_line_for_every_client() -> None:
    assert set("\x85\u2028\u2029\n\r\x1c") <= set(BREAKS)
    said = {"text": f"one{BREAKS}two", BREAKS: "é中😀"}
    lines = sse(said, "name").splitlines()
    assert [lines[0], *lines[2:]] == ["event: name", ""]
    assert json.loads(lines[1].removeprefix("data: ")) == said
    assert "é中😀" in lines[1], "everything else is sent as it is"


def test_an_error_is_one_line_for_every_client() -> None:
    async def events() -> AsyncIterator[str]:
        yield "a"
        raise BackendError(f"It broke{BREAKS}here.")

    last = asyncio.run(body_of(events()))[-1]
    [line] = [line for line in last.splitlines() if line]
    assert BREAKS in json.loads(line.removeprefix("data: "))["error"]["message"]


@pytest.mark.parametrize("pieces", [0, 1, 2])
def test_a_client_that_leaves_ends_what_is_read(pieces: int) -> None:
    ended: list[bool] = []

    async def events() -> AsyncIterator[str]:
        try:
            while True:
                yield sse({"a": 1})
                await asyncio.sleep(0.001)
        finally:
            ended.append(True)

    async def main() -> None:
        async def read() -> None:
            left = pieces
            async for _ in stream_response(events()).body_iterator:
                left -= 1
                if left < 0:
                    await asyncio.sleep(10)

        reading = asyncio.create_task(read())
        await asyncio.sleep(0.05)
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
        await asyncio.get_running_loop().shutdown_asyncgens()

    asyncio.run(main())
    assert ended == [True]
