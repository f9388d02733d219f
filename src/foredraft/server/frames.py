"""When tokens cross over to their readers: those of short rounds together, twenty times a second."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from time import perf_counter

from foredraft.types import Event, TokenEvent

FRAME_S = 1 / 20
"""Tokens are kept for later ones for so long at most, where rounds take as long as the last one did. Nobody
reads faster, and each crossing wakes an event loop, writes to a socket, wakes a client: processor time that
two cores lack in their forward (0.7 to 1 ms for a crossing, where a forward takes 6).
"""


class Frames:
    """The events that wait to cross over. `clock` gives seconds.

    An answer's first token, its end, and whatever else is no token wait for nothing; neither does anything
    where the next round would be over too late, or may take longer.
    """

    def __init__(self, clock: Callable[[], float] = perf_counter) -> None:
        self._clock = clock
        self._kept: list[Event] = []
        self._crossed = self._round_ended = clock()

    def due(self, events: Sequence[Event], fresh: Collection[int], *, hurry: bool = False) -> list[Event]:
        """The events that are to cross over after the round that brought `events`, in order. `fresh`:
        requests of which nothing has crossed over yet; `hurry`: the next round may be a long one.
        """
        now = self._clock()
        round_s, self._round_ended = now - self._round_ended, now
        self._kept += events
        late = now - self._crossed + round_s > FRAME_S
        if not (hurry or late or any(_urgent(event, fresh) for event in events)):
            return []
        self._crossed = now
        return self.rest()

    def rest(self) -> list[Event]:
        """All that waits."""
        kept, self._kept = self._kept, []
        return kept


def _urgent(event: Event, fresh: Collection[int]) -> bool:
    return not isinstance(event, TokenEvent) or event.request in fresh
