"""Live measurement: all sides answer every prompt in turns, so that whatever the machine does hits them all.

Sides that can pause take short turns with one another (`slices`), the others answer one after the other. The
order is reversed from one prompt to the next: a side that always went second would find warm caches, or a hot
processor, every time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from foredraft.bench.passes import Passes
from foredraft.bench.results import Row, Sample
from foredraft.bench.sides import Learning, Learnt, Messages, Side
from foredraft.bench.slices import Pausing, in_slices, turn_seconds
from foredraft.bench.workloads import PromptCase
from foredraft.config import AUTO
from foredraft.errors import ContextLengthError
from foredraft.types import SamplingParams

WARM_UP: Messages = ({"role": "user", "content": "Write the numbers from one to ten, and then once more."},)
WARM_UP_TOKENS = 32

LEAD_INS = 8
"""How many lengths lead-ins have, in turns: WARM_UP_TOKENS and those just below it."""


def warm_up(sides: Sequence[Side], tokens: int = WARM_UP_TOKENS) -> None:
    """A short answer from each side that is not counted: pages, caches, clocks. Raises ForedraftError."""
    for side in sides:
        side.answer(WARM_UP, SamplingParams(max_tokens=tokens, ignore_eos=True))


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
    not a speedup. In further passes each case begins with what the sides had learnt before it in the first
    one, as far as they can tell, after a lead-in.

    Of a conversation the first `turns` turns are measured. What was answered to the turns before is the first
    side's text for all sides, so that all get the same prompt. A turn that does not fit into the context of
    some side is left out, with those after it; `too_long` gets its name: the rows of sides that had answered
    it by then are to be left out, too. Engines' turns with one another are as long as the first side's last
    answer says. Raises ForedraftError.
    """
    memory, interview = _Memory(sides), _Interview(sides[0], params, turns)
    for again, cases in enumerate(passes):
        for side in sides:
            side.restart()
        for number, case in enumerate(cases):
            if again == 0:
                memory.keep(case)
            elif again >= passes.repeat:
                memory.bring_back(case, lead_in=WARM_UP_TOKENS - again % LEAD_INS)
            order = sides if (number + again) % 2 == 0 else list(reversed(sides))
            rows: list[Row] = []
            for turn, name, sample in interview.conversation(case, order):
                if sample is not None:
                    rows.append(Row(case.turn_id(turn), case.category, name, again, sample))
                    yield rows[-1]
                elif too_long is not None:
                    too_long.add(case.turn_id(turn))
            _tell(passes, case, rows, sides[0].name)


def _tell(passes: Passes, case: PromptCase, rows: Sequence[Row], baseline: str) -> None:
    """How long the answers to its turns were, and how much faster `auto` gave them."""
    plain = {row.prompt: row.sample for row in rows if row.setting == baseline}
    for sample in plain.values():
        passes.answered(case, sample.count)
    for row in rows:
        rate = plain[row.prompt].rate if row.prompt in plain else None
        if row.setting == AUTO and row.sample.rate and rate:
            passes.compared(case, row.prompt, row.sample.rate / rate)


class _Interview:
    """Has sides answer up to `turns` turns of conversations. All get the answers of `first` as history."""

    def __init__(self, first: Side, params: SamplingParams, turns: int) -> None:
        self._first = first.name
        self._params = params
        self._turns = turns
        self._seconds = turn_seconds(None)

    def conversation(
        self, case: PromptCase, order: Sequence[Side]
    ) -> Iterator[tuple[int, str, Sample | None]]:
        """Number of the turn, name of the side and its answer, as they come; a turn that does not fit into
        the context of some side is the last one, and ends without an answer.
        """
        said: list[dict[str, str]] = []
        for turn, text in enumerate(case.turns[: self._turns]):
            said.append({"role": "user", "content": text})
            answers: dict[str, str] = {}
            try:
                for name, sample in _answers(order, said, self._params, self._seconds):
                    answers[name] = sample.text
                    if name == self._first:
                        self._seconds = turn_seconds(sample.rate)
                    yield turn, name, sample
            except ContextLengthError:
                yield turn, self._first, None
                return
            said.append({"role": "assistant", "content": answers[self._first]})


class _Memory:
    """What the sides had learnt before each case was first answered."""

    def __init__(self, sides: Sequence[Side]) -> None:
        self._sides = [side for side in sides if isinstance(side, Learning)]
        self._before: dict[str, list[Learnt]] = {}

    def keep(self, case: PromptCase) -> None:
        self._before[case.id] = [side.learnt() for side in self._sides]

    def bring_back(self, case: PromptCase, lead_in: int) -> None:
        """New sides after an answer of `lead_in` tokens. Without it their first question would run code for
        the first time, and come at the same token in each pass: where it is wrong, in all of them.
        """
        for side, learnt in zip(self._sides, self._before[case.id], strict=True):
            side.restart()
            warm_up([side], lead_in)
            side.recall(learnt)


def _answers(
    order: Sequence[Side], messages: Messages, params: SamplingParams, seconds: float
) -> Iterator[tuple[str, Sample]]:
    """Every side's answer: of those that can pause at once, in turns of `seconds`, in the place of
    the first of them.
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
