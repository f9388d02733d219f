"""Texts that flip between copying and noise, and how long each of their phases takes.

The hardest text for a planner is one that changes: what it has learnt of a phase is wrong in the next. A
flipping text copies a passage of its prompt word for word, then goes on with tokens that nothing predicts,
and so on. No model writes such a text by itself, so it is scripted (`scripted.ScriptedModel`) or replayed.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from foretoken.engine.engine import Engine
from foretoken.errors import BackendError
from foretoken.types import FinishEvent, SamplingParams, TokenEvent

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
    passages: Sequence[Sequence[int]], alphabet: Sequence[int], *, length: int = 200, seed: int = 0
) -> FlippingText:
    """The prompt is all `passages`; the output copies the first `length` tokens of each, and `length` tokens
    drawn from `alphabet` follow each copy. Which of the two comes first is the seed's choice.
    """
    rng = random.Random(seed)
    prompt = [token for passage in passages for token in passage]
    output = rng.choices(alphabet, k=OPENING)
    phases: list[Phase] = []
    order: tuple[Kind, Kind] = ("copy", "random") if seed % 2 == 0 else ("random", "copy")
    for passage in passages:
        for kind in order:
            start = len(output)
            output += passage[:length] if kind == "copy" else rng.choices(alphabet, k=length)
            phases.append(Phase(kind, start, len(output)))
    return FlippingText(tuple(prompt), tuple(output), tuple(phases))


def commit_times(
    engine: Engine, prompt: Sequence[int], params: SamplingParams, clock: Callable[[], float]
) -> tuple[list[int], list[float]]:
    """The tokens of an answer and when each was committed, in seconds of `clock`.

    A round's tokens come at once; its time is spread over them evenly, so that a round across the border of
    two phases counts for both. Nothing else may run in the engine. Raises BackendError if the request fails.
    """
    engine.add(list(prompt), params)
    tokens: list[int] = []
    times: list[float] = []
    last = clock()
    while not engine.idle:
        events = engine.step()
        now = clock()
        made = [event.token for event in events if isinstance(event, TokenEvent)]
        times += [last + (now - last) * (i + 1) / len(made) for i in range(len(made))]
        tokens += made
        last = now
        for event in events:
            if isinstance(event, FinishEvent) and event.error:
                raise BackendError(f"Generation failed: {event.error}")
    return tokens, times


def phase_seconds(phases: Sequence[Phase], times: Sequence[float]) -> list[float]:
    """How long each phase took, by the times at which its tokens were committed."""
    return [times[phase.end - 1] - times[phase.start - 1] for phase in phases]


def best_phases(runs: Sequence[Sequence[float]]) -> list[float]:
    """The least time of each phase over several runs of the same text: a machine only ever gets slower."""
    return [min(times) for times in zip(*runs, strict=True)]


def flips(phases: Sequence[Phase]) -> int:
    """How often a text changes its kind."""
    return sum(a.kind != b.kind for a, b in pairwise(phases))
