"""The requests that wait: in the order of their turns, and by their id."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator

from foredraft.engine.admission import turn
from foredraft.engine.request import Request


class Waiting:
    """Iterating gives them in the order in which they will be admitted; whoever does it may remove some.

    Finding one, or that it is not there, does not depend on how many wait.
    """

    def __init__(self) -> None:
        self._in_turn: list[Request] = []
        self._by_id: dict[int, Request] = {}

    def __len__(self) -> int:
        return len(self._in_turn)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._in_turn.copy())

    def get(self, request_id: int) -> Request | None:
        """The request of that id, or None if it does not wait."""
        return self._by_id.get(request_id)

    def add(self, request: Request) -> None:
        """The request waits; its turn must not change until it is removed."""
        insort(self._in_turn, request, key=turn)
        self._by_id[request.id] = request

    def remove(self, request: Request) -> None:
        """The request does not wait any longer. Raises KeyError if it did not."""
        del self._by_id[request.id]
        del self._in_turn[bisect_left(self._in_turn, turn(request), key=turn)]
