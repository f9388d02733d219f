"""Answers of a front that ends."""

from __future__ import annotations

import asyncio

import pytest

from foredraft.scale import callers
from foredraft.scale.callers import Callers


def test_the_answers_of_a_front_that_has_ended_are_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(callers, "LOOK_S", 0.01)
    there, asked = {"a", "b"}, []

    def is_there(front: str) -> bool:
        asked.append(front)
        return front in there

    async def run() -> None:
        known = Callers(is_there)
        with known.answering("a") as one, known.answering("a") as other, known.answering("b") as third:
            await asyncio.sleep(0.1)
            assert not any(event.is_set() for event in (one, other, third))
            there.discard("a")
            await asyncio.wait_for(asyncio.gather(one.wait(), other.wait()), 10)
            assert not third.is_set()
        await asyncio.sleep(0.1)
        asked.clear()
        await asyncio.sleep(0.1)
        assert not asked  # where nothing runs, nothing is asked
        with known.answering("a") as again:
            await asyncio.wait_for(again.wait(), 10)

    asyncio.run(run())
