"""Answers of several engines in short turns, so that what a machine does for a second hits all of them.

Whole answers, one after the other, take seconds: on a machine whose speed changes in between, two sides
differ by what the machine did. Sides that can pause get turns of some rounds instead, in each of
which a side generates some tokens. Its time is the sum of its turns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import inf
from time import perf_counter
from typing import Protocol, TypeVar, runtime_checkable

from foredraft.bench.results import Sample
from foredraft.types import Event, FinishEvent, Message, SamplingParams

Result_co = TypeVar("Result_co", covariant=True)

TURN_ROUNDS = 3
"""Plain rounds that a turn takes. More than one, as the first finds the other side's data in the caches, and
few, as what comes and goes should hit both. Plain decoding of answers under 100 tokens against itself on a
busy machine, standard deviation of a prompt's speedup: 2.2 to 2.8 % in turns of 12 rounds of 4 ms, 1.5 % in
turns of three, in which a round takes 3 % longer.
"""

LONGEST_TURN = 0.5
"""Seconds, also where a round takes longer than usual, or its time is not known yet."""


def turn_seconds(rounds_a_second: float | None) -> float:
    """How long a turn is where plain decoding goes at this rate; None: it is not known."""
    return min(LONGEST_TURN, TURN_ROUNDS / rounds_a_second) if rounds_a_second else LONGEST_TURN


class Work(Protocol[Result_co]):
    """Something that can pause, such as an answer."""

    def go_on(self, seconds: float) -> Result_co | None:
        """Work for about so long; the result when it is done. Raises ForedraftError."""
        ...


@runtime_checkable
class Pausing(Protocol):
    """A side whose answers can pause."""

    def begin(self, messages: Sequence[Message], params: SamplingParams) -> Work[Sample]:
        """An answer that waits for its first turn. Raises ForedraftError."""
        ...


def in_slices(work: Mapping[str, Work[Result_co]], seconds: float) -> Iterator[tuple[str, Result_co]]:
    """Names and results, as they come; all take turns of `seconds`, in their order."""
    going_on = dict(work)
    while going_on:
        for name, one in list(going_on.items()):
            result = one.go_on(seconds)
            if result is not None:
                del going_on[name]
                yield name, result


def whole(work: Work[Result_co]) -> Result_co:
    """The result without a pause."""
    [(_, result)] = in_slices({"": work}, inf)
    return result


class Turns:
    """Reads a request's events in turns, and counts the time of the turns only.

    `prompt_ms` is what passed until the first token, `decode_ms` from there to the last.
    """

    def __init__(self, events: Iterator[Event], clock: Callable[[], float] = perf_counter) -> None:
        self._events = events
        self._clock = clock
        self._spent = 0.0
        self._first: float | None = None
        self._last = 0.0
        self.seen: list[Event] = []

    @property
    def prompt_ms(self) -> float:
        """Until the first token; all there was where none came."""
        return 1e3 * (self._spent if self._first is None else self._first)

    @property
    def decode_ms(self) -> float:
        """From the first token to the last."""
        return 0.0 if self._first is None else 1e3 * (self._last - self._first)

    def read(self, seconds: float) -> bool:
        """Read for about so long; whether the request's last event has come."""
        began, passed = self._clock(), 0.0
        for event in self._events:
            passed = self._clock() - began
            self.seen.append(event)
            if isinstance(event, FinishEvent):
                break
            self._last = self._spent + passed
            if self._first is None:
                self._first = self._last
            if passed >= seconds:
                break
        self._spent += passed
        return bool(self.seen) and isinstance(self.seen[-1], FinishEvent)
