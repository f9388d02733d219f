"""Groups the tokens of short rounds into frames, twenty a second, before the event loop gets them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from time import perf_counter

from foredraft.types import Event, TokenEvent

FRAME_S = 1 / 20
"""Maximum seconds that a token is held for later ones, if rounds take as long as the last one. People read no
faster, and each hand-over wakes the event loop, writes to a socket and wakes a client: 0.7 to 1 ms of
processor time, on two cores whose forwards take 6 ms.
"""


class Frames:
    """Events that wait to be handed over. `clock` returns seconds.

    An answer's first token, its end, and all events but tokens are never held; nor is anything if the next
    round would end too late or may take longer.
    """

    def __init__(self, clock: Callable[[], float] = perf_counter) -> None:
        self._clock = clock
        self._kept: list[Event] = []
        self._crossed = self._round_ended = clock()

    def due(self, events: Sequence[Event], fresh: Collection[int], *, hurry: bool = False) -> list[Event]:
        """The events to hand over after the round that produced `events`, in order. `fresh`: requests without
        any event handed over yet; `hurry`: the next round may be long.
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
        """All held events."""
        kept, self._kept = self._kept, []
        return kept


def _urgent(event: Event, fresh: Collection[int]) -> bool:
    return not isinstance(event, TokenEvent) or event.request in fresh
