"""Reading GET /console/events."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import httpx


class Sent(NamedTuple):
    """One event. A comment has the name ":"."""

    name: str
    data: Any


def sent(reply: httpx.Response) -> Iterator[Sent]:
    """The events of a stream as they come."""
    name = ""
    for line in reply.iter_lines():
        if line.startswith(":"):
            yield Sent(":", None)
        elif line.startswith("event: "):
            name = line.removeprefix("event: ")
        elif line.startswith("data: "):
            yield Sent(name, json.loads(line.removeprefix("data: ")))


@contextmanager
def following(url: str, topics: str, key: str = "none", **options: Any) -> Iterator[Iterator[Sent]]:
    """An open stream of these topics."""
    headers = {"Authorization": f"Bearer {key}"}
    address = f"{url}/console/events?topics={topics}"
    with httpx.stream("GET", address, headers=headers, timeout=30, **options) as reply:
        if reply.status_code != 200:
            reply.read()
        reply.raise_for_status()
        assert reply.headers["content-type"].startswith("text/event-stream")
        yield sent(reply)
