"""Live measurement: all sides answer every prompt in turns, so that whatever the machine does hits them all.

Sides that can pause take short turns with one another (`slices`), the others answer one after the other. The
order is reversed from one prompt to the next: a side that always went second would find warm caches, or a hot
processor, every time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from foretoken.bench.cost_measure import QUICK, measure_profile
from foretoken.bench.curves import Curves
from foretoken.bench.passes import Passes
from foretoken.bench.results import Row, Sample
from foretoken.bench.sides import Messages, Side
from foretoken.bench.slices import Pausing, in_slices, turn_seconds
from foretoken.bench.workloads import PromptCase
from foretoken.engine.engine import Engine
from foretoken.errors import CapacityError, ContextLengthError
from foretoken.types import SamplingParams

WARM_UP: Messages = ({"role": "user", "content": "Write the numbers from one to ten, and then once more."},)
WARM_UP_TOKENS = 32

DEPTHS = (768, 1536, 3072)
"""Tokens of context at which V(n) is measured too, where answers are so deep."""


def warm_up(sides: Sequence[Side]) -> None:
    """A short answer from each side that is not counted: pages, caches, clocks. Raises ForetokenError."""
    for side in sides:
        side.answer(WARM_UP, SamplingParams(max_tokens=WARM_UP_TOKENS, ignore_eos=True))


def measure(
    sides: Sequence[Side],
    passes: Passes,
    params: SamplingParams,
    *,
    turns: int = 1,
    too_long: set[str] | None = None,
) -> Iterator[Row]:
    """The cases of every pass, answered by every side; rows as they come.

    A pass begins with sides that have learnt nothing: an answer that is remembered from the pass before is
    not a speedup. Of a conversation the first `turns` turns are measured. What was answered to the turns
    before is the first side's text for all sides, so that all are asked the same. A turn that does not fit
    into the context of some side is left out, with those after it; `too_long` gets its name: the rows of
    sides that had answered it by then are to be left out, too. A turn is as long as the first side's
    last answer says. Raises ForetokenError.
    """
    seconds = turn_seconds(None)
    for again, cases in enumerate(passes):
        for side in sides:
            side.restart()
        for number, case in enumerate(cases):
            order = sides if (number + again) % 2 == 0 else list(reversed(sides))
            said: list[dict[str, str]] = []
            for turn, text in enumerate(case.turns[:turns]):
                said.append({"role": "user", "content": text})
                answers: dict[str, str] = {}
                try:
                    for name, sample in _answers(order, said, params, seconds):
                        answers[name] = sample.text
                        if name == sides[0].name:
                            seconds = turn_seconds(sample.rate)
                            passes.answered(case, sample.count)
                        yield Row(case.turn_id(turn), case.category, name, again, sample)
                except ContextLengthError:
                    if too_long is not None:
                        too_long.add(case.turn_id(turn))
                    break
                said.append({"role": "assistant", "content": answers[sides[0].name]})


def _answers(
    order: Sequence[Side], messages: Messages, params: SamplingParams, seconds: float
) -> Iterator[tuple[str, Sample]]:
    """Every side's answer: of those that can pause at once, in turns of so many seconds, in the place of the
    first of them.
    """
    together = {side.name: side for side in order if isinstance(side, Pausing)}
    begun = False
    for side in order:
        if side.name not in together:
            yield side.name, side.answer(messages, params)
        elif not begun:
            begun = True
            yield from in_slices(
                {name: one.begin(messages, params) for name, one in together.items()}, seconds
            )


def turn_ids(cases: Sequence[PromptCase], turns: int = 1) -> list[str]:
    """The prompts of `measure`'s rows."""
    return [case.turn_id(turn) for case in cases for turn in range(min(len(case.turns), turns))]


def measured_curves(engine: Engine, deepest: int) -> Curves:
    """What a forward over n rows takes, by depth; nothing where the context is too short to measure in.

    A quick measurement at depths up to about `deepest`, in the machine's state of now. The engine is of no
    use afterwards.
    """
    [shallow] = QUICK.depths
    further = [depth for depth in DEPTHS if depth > shallow]
    needed = [shallow, *(depth for i, depth in enumerate(further) if deepest > ([shallow, *further][i]))]
    try:
        profile = measure_profile(engine.model, replace(QUICK, depths=needed)).profile
    except CapacityError:
        return Curves({})
    return Curves(profile.curve, profile.resize or 0.0)
