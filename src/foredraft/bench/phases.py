"""Texts that flip between copying and noise, and how long each of their phases takes.

The hardest text for a planner is one that changes: what it has learnt of a phase is wrong in the next. A
flipping text copies a passage of its prompt word for word, then goes on with tokens that nothing predicts,
and so on. No model writes such a text by itself, so it is replayed (`replay_model`) or scripted (`scripted`).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from foredraft.engine.engine import Engine
from foredraft.errors import BackendError
from foredraft.types import FinishEvent, SamplingParams, TokenEvent

Kind = Literal["copy", "random"]

OPENING = 8
"""Tokens of noise that begin the output: a phase is timed from the token before it."""


@dataclass(frozen=True, slots=True)
class Phase:
    """Output tokens `start` … `end` - 1."""

    kind: Kind
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class FlippingText:
    """A prompt, the output that follows it, and the output's phases in order."""

    prompt: tuple[int, ...]
    output: tuple[int, ...]
    phases: tuple[Phase, ...]


def flipping_text(
    passages: Sequence[Sequence[int]], alphabet: Sequence[int], *, seed: int, first: Kind = "copy"
) -> FlippingText:
    """The prompt is all `passages`. The output copies each of them in turn, with as many tokens drawn from
    `alphabet` before or after it: the kind `first` begins.
    """
    rng = random.Random(seed)  # noqa: S311 - a text, not a secret
    prompt = tuple(token for passage in passages for token in passage)
    output = rng.choices(alphabet, k=OPENING)
    phases: list[Phase] = []
    order: tuple[Kind, Kind] = ("copy", "random") if first == "copy" else ("random", "copy")
    for passage in passages:
        for kind in order:
            start = len(output)
            output += passage if kind == "copy" else rng.choices(alphabet, k=len(passage))
            phases.append(Phase(kind, start, len(output)))
    return FlippingText(prompt, tuple(output), tuple(phases))


class Commits:
    """A greedy answer of so many tokens and when each of them was committed, in turns.

    A round's tokens come at once; its time is spread over them evenly, so that a round across the border of
    two phases counts for both. Nothing else may run in the engine.
    """

    def __init__(
        self, engine: Engine, prompt: Sequence[int], tokens: int, clock: Callable[[], float]
    ) -> None:
        engine.add(list(prompt), SamplingParams(max_tokens=tokens, ignore_eos=True))
        self._engine, self._clock = engine, clock
        self._spent = 0.0
        self._made: list[int] = []
        self._times: list[float] = []

    @property
    def made(self) -> int:
        """Tokens that were committed so far."""
        return len(self._made)

    def go_on(self, seconds: float) -> tuple[tuple[int, ...], list[float]] | None:
        """Decode for about so long; the tokens, and their times in seconds of turns, when all are there.
        Raises BackendError if the request fails.
        """
        began = self._clock() - self._spent
        turn_ends = self._spent + seconds
        while not self._engine.idle:
            self._round(began)
            if self._spent >= turn_ends:
                break
        return (tuple(self._made), self._times) if self._engine.idle else None

    def _round(self, began: float) -> None:
        last, events = self._spent, self._engine.step()
        self._spent = self._clock() - began
        came = [event.token for event in events if isinstance(event, TokenEvent)]
        self._times += [last + (self._spent - last) * (i + 1) / len(came) for i in range(len(came))]
        self._made += came
        for event in events:
            if isinstance(event, FinishEvent) and event.error:
                raise BackendError(f"Generation failed: {event.error}")


class Phases:
    """How long each phase of a text takes in an engine whose model says it, measured in turns."""

    def __init__(self, engine: Engine, text: FlippingText, clock: Callable[[], float]) -> None:
        self._text = text
        self._commits = Commits(engine, text.prompt, len(text.output), clock)

    @property
    def stage(self) -> int:
        """How many phases are behind it: who decodes the same text in turns meets at each border."""
        return sum(phase.end <= self._commits.made for phase in self._text.phases)

    def go_on(self, seconds: float) -> list[float] | None:
        """Decode for about so long; the phases' seconds when the text is complete. Raises BackendError if the
        model says something else, and for a request that fails.
        """
        done = self._commits.go_on(seconds)
        if done is None:
            return None
        tokens, times = done
        if tokens != self._text.output:
            raise BackendError("The model did not say what was scripted.")
        return [times[phase.end - 1] - times[phase.start - 1] for phase in self._text.phases]
