"""Does `auto` follow a text that changes? It flips between copying and noise every 200 tokens.

    python -m lab.flip steep gpu

The hardest text for a planner is one that changes: what it has learnt of a phase is wrong in the next. A
flipping text copies a passage of its prompt word for word, then goes on with tokens that nothing predicts,
and so on. Settings that always draft win the one kind of phase and lose the other. No model writes such a
text by itself, so it is replayed, in virtual time. Of each phase: what it takes with `auto`, in plain rounds,
and the best of the other settings there. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from foredraft.bench.charge import charge
from foredraft.bench.curves import Curve, find_curve
from foredraft.bench.replay_model import ReplayModel
from foredraft.bench.slices import whole
from foredraft.bench.trace import Trace, TraceSet
from foredraft.config import AUTO, OFF
from foredraft.engine.engine import Engine
from foredraft.errors import BackendError
from foredraft.types import FinishEvent, SamplingParams, TokenEvent
from lab.live import run

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
    rng = random.Random(seed)
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
    """A greedy answer and when each of its tokens was committed, in turns.

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

    def go_on(self, seconds: float) -> list[float] | None:
        """Decode for about so long; the phases' seconds when the text is complete. Raises BackendError if the
        model says something else, and for a request that fails.
        """
        done = self._commits.go_on(seconds)
        if done is None:
            return None
        tokens, times = done
        if tokens != self._text.output:
            raise BackendError("The model did not say the text.")
        return [times[phase.end - 1] - times[phase.start - 1] for phase in self._text.phases]


VOCABULARY = 2048
LENGTH = 200
PASSAGES = 3


def made_up(texts: int) -> list[FlippingText]:
    """Texts of `PASSAGES` passages of `LENGTH` tokens each; every other one begins with noise."""
    made: list[FlippingText] = []
    for seed in range(texts):
        rng = random.Random(1000 + seed)
        passages = [rng.choices(range(VOCABULARY), k=LENGTH) for _ in range(PASSAGES)]
        first: Kind = "random" if seed % 2 else "copy"
        made.append(flipping_text(passages, range(VOCABULARY), seed=seed, first=first))
    return made


def replayed(
    texts: Sequence[FlippingText], curve: Curve, speculation: str, *, charged: bool = True
) -> list[list[float]]:
    """For each text what its phases take, in plain rounds; one engine answers one text after the other.
    `charged`: attempts to draft take time.
    """
    traces = [Trace(str(i), "flip", text.prompt, text.output) for i, text in enumerate(texts)]
    model = ReplayModel(TraceSet("made up", VOCABULARY, "made up", (), traces), curve)
    with Engine(model, clock=model.clock) as engine:
        engine.set_speculation(speculation)
        if charged:
            charge(engine, model, choosing=speculation == AUTO)
        v1_s = curve.v1_ms / 1e3
        return [[s / v1_s for s in whole(Phases(engine, text, model.clock))] for text in texts]


def main() -> None:
    """Print a line for each kind of phase on each curve, and the JSON line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("curves", nargs="+", help="cost curves that ship, or JSON files")
    parser.add_argument("--on", nargs="+", default=["suffix", "ngram-simple"], help="always drafting")
    parser.add_argument("--texts", type=int, default=3)
    args = parser.parse_args()
    texts = made_up(args.texts)
    found: dict[str, dict[str, float]] = {}
    for curve in map(find_curve, args.curves):
        taken = {setting: replayed(texts, curve, setting) for setting in (OFF, *args.on, AUTO)}
        found[curve.name] = {}
        for kind in ("copy", "random"):
            total = {setting: of_kind(texts, phases, kind) for setting, phases in taken.items()}
            best = min((setting for setting in total if setting != AUTO), key=total.__getitem__)
            found[curve.name][kind] = share = total[best] / total[AUTO]
            print(f"{curve.name:<12}{kind:<8}auto at {share:.3f} of {best}")
    print(json.dumps(found))


def of_kind(texts: Sequence[FlippingText], phases: Sequence[Sequence[float]], kind: str) -> float:
    """What all phases of a kind take together."""
    return sum(
        taken
        for text, of_text in zip(texts, phases, strict=True)
        for phase, taken in zip(text.phases, of_text, strict=True)
        if phase.kind == kind
    )


if __name__ == "__main__":
    run(main)
