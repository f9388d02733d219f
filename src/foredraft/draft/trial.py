"""What drafting takes and brings on this machine, tried out in engines, in turns with what it is compared to.

A round with a draft is more than some forwards of the draft and one of the target: hidden states are kept,
the first token of a draft reads what the round before accepted, and all of it is planned and learned from.
For a model whose forward takes a few milliseconds that is a fifth of the round. So whole rounds are timed, of
each length (`time_rounds`); with the tokens that they bring, as scored, that is the speed of drafts made in
every round.

`auto` has other drafters beside this one, and does not draft in every round. What it gains is seen by having
it answer with the draft and without (`compare_auto`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from math import ceil, sqrt
from statistics import median, quantiles
from time import perf_counter
from typing import NamedTuple

from foredraft.bench.sides import EngineAnswer
from foredraft.bench.slices import in_slices, turn_seconds
from foredraft.draft.passages import DEPTHS, Passage
from foredraft.engine.engine import Engine
from foredraft.protocols import Proposer, RequestView
from foredraft.types import Choice, Draft, DraftLimit, FinishEvent, Load, Reason, Round, SamplingParams

ROUNDS = 4
"""Rounds of one length in a row that are timed, after a first one that is not: it comes after a forward of
another size."""

TURNS = 8
"""Times that each length has its turn."""

ROUNDS_S = 10.0
"""Seconds after which no further turn begins."""

BUSY = 0.25
"""Spread of plain rounds above which the machine is said to be busy. At rest it is a few hundredths."""

ANSWERS = 12
"""Answers with `auto`, at most."""

LEAST_ANSWERS = 4
"""From fewer no gain is told."""

ANSWER_TOKENS = 64
AUTO_S = 40.0
"""Seconds after which no further answer begins, once there are enough."""

_WARM_UP = 16


class Lengths:
    """A planner that has every draft made and verified with `length` tokens: 0 for none."""

    def __init__(self) -> None:
        self.length = 0
        self.last: Round | None = None
        """The latest round."""
        self._names: dict[int, list[str]] = {}

    def start(self, request: RequestView, drafters: Sequence[Proposer]) -> None:
        self._names[request.id] = [drafter.name for drafter in drafters]

    def limits(
        self,
        requests: Sequence[RequestView],
        load: Load,  # noqa: ARG002
    ) -> Mapping[str, Sequence[DraftLimit | None]]:
        if not self.length:
            return {}
        limit = DraftLimit(self.length)
        return {name: [limit] * len(requests) for request in requests for name in self._names[request.id]}

    def further(
        self,
        requests: Sequence[RequestView],  # noqa: ARG002
        candidates: Sequence[Sequence[Draft]],  # noqa: ARG002
        load: Load,  # noqa: ARG002
    ) -> Mapping[str, Sequence[DraftLimit | None]]:
        return {}

    def choose(
        self,
        requests: Sequence[RequestView],  # noqa: ARG002
        candidates: Sequence[Sequence[Draft]],
        load: Load,  # noqa: ARG002
    ) -> list[Choice]:
        return [Choice(its[0]) if its else Choice(None, Reason.NOTHING_FOUND) for its in candidates]

    def observe(self, rounds: Sequence[Round]) -> None:
        self.last = rounds[-1]

    def stop(self, request: RequestView) -> None:
        self._names.pop(request.id, None)


@dataclass(frozen=True, slots=True)
class RoundTimes:
    """`plain_ms`: a plain round. In plain rounds beside them, by the tokens of the draft: `rounds`, the whole
    round, 1 for none; `drafting`, the part of it that makes the draft. None where a draft of that length was
    never made. `spread`: how far apart the quarters of the plain rounds are, as a share of one.
    """

    plain_ms: float
    rounds: tuple[float | None, ...]
    drafting: tuple[float | None, ...]
    spread: float = 0.0

    def speed(self, tokens: float, length: int) -> float | None:
        """Of rounds that draft `length` tokens and bring `tokens`, over plain decoding."""
        cost = self.rounds[length]
        return None if cost is None else tokens / cost


@dataclass(frozen=True, slots=True)
class Gain:
    """How much faster `auto` answered with the draft, over the number of `answers`, and the standard error of
    that.
    """

    speed: float
    error: float
    answers: int

    @property
    def shown(self) -> tuple[float, float]:
        """Both as they are shown; the error is rounded up."""
        return round(self.speed, 2), ceil(round(100 * self.error, 6)) / 100

    @property
    def pays(self) -> bool:
        """Whether that is more than nothing, by the figures that are shown."""
        speed, error = self.shown
        return round(speed - error, 2) > 1.0


class Trial(NamedTuple):
    """What was tried: the times of rounds by temperature, and what `auto` gains, if that could be told."""

    times: Mapping[float, RoundTimes]
    gain: Gain | None


# --- rounds --------------------------------------------------------------------------------------------


class _Answer:
    """An answer of an engine that goes on as long as there is room, in rounds that are timed."""

    def __init__(
        self, engine: Engine, prompt: Sequence[int], temperature: float, clock: Callable[[], float]
    ) -> None:
        self._engine = engine
        self._clock = clock
        params = SamplingParams(temperature=temperature, seed=1, ignore_eos=True)
        self._request = engine.add(list(prompt), params)
        self.over = False
        while not self.over and not self._step()[1]:
            pass  # the prompt

    def _step(self) -> tuple[float, bool]:
        """(milliseconds of a round, whether a token came)."""
        began = self._clock()
        events = self._engine.step()
        elapsed = 1e3 * (self._clock() - began)
        self.over = any(isinstance(event, FinishEvent) for event in events)
        return elapsed, bool(events)

    def rounds(self) -> list[float]:
        """Milliseconds of some rounds in a row."""
        found: list[float] = []
        for number in range(1 + ROUNDS):
            if self.over:
                break
            elapsed, _ = self._step()
            if number and not self.over:
                found.append(elapsed)
        return found

    def drafted(self, planner: Lengths, length: int) -> list[tuple[float, float]]:
        """(milliseconds, those of drafting) of rounds with drafts of this length."""
        found: list[tuple[float, float]] = []
        planner.length = length
        for number in range(1 + ROUNDS):
            if self.over:
                break
            elapsed, _ = self._step()
            last = planner.last
            if number and not self.over and last is not None and _length(last) == length:
                found.append((elapsed, sum(last.draft_ms.values())))
        return found

    def close(self) -> None:
        self._engine.abort(self._request)


def _length(measured: Round) -> int:
    return sum(len(outcome.draft or ()) for _, outcome in measured.outcomes)


def time_rounds(
    plain: Engine,
    drafting: Engine,
    planner: Lengths,
    prompts: Sequence[Sequence[int]],
    *,
    temperature: float,
    clock: Callable[[], float] = perf_counter,
) -> RoundTimes:
    """Time rounds of `drafting`, which `planner` plans, each beside plain rounds of `plain`. Both engines
    must be idle.
    """
    began = clock()
    every: list[float] = []
    found: dict[int, list[tuple[float, float]]] = {length: [] for length in range(1, DEPTHS + 1)}
    for turn, prompt in enumerate(islice(cycle(prompts), TURNS)):
        if turn and clock() - began > ROUNDS_S:
            break
        planner.length = 0
        one = _Answer(plain, prompt, temperature, clock)
        other = _Answer(drafting, prompt, temperature, clock)
        try:
            beside = one.rounds()
            for length in found if turn % 2 == 0 else reversed(found):
                before, drafted, beside = beside, other.drafted(planner, length), one.rounds()
                every += before
                if before and beside:
                    usual = median(before + beside)
                    found[length] += [(ms / usual, drafting / usual) for ms, drafting in drafted]
        finally:
            one.close()
            other.close()
    return RoundTimes(
        median(every) if every else 0.0,
        (1.0, *(median([ms for ms, _ in its]) if its else None for its in found.values())),
        (0.0, *(median([ms for _, ms in its]) if its else None for its in found.values())),
        _spread(every),
    )


def _spread(every: Sequence[float]) -> float:
    if len(every) < 2:
        return 0.0
    low, middle, high = quantiles(every, n=4)
    return (high - low) / middle


def some(passages: Sequence[Passage]) -> Sequence[Passage]:
    """At most `ANSWERS` of them, from all parts."""
    return passages[:: max(1, len(passages) // ANSWERS)][:ANSWERS]


# --- auto ----------------------------------------------------------------------------------------------


def compare_auto(
    without: Engine,
    using: Engine,
    passages: Sequence[Passage],
    clock: Callable[[], float] = perf_counter,
) -> Gain | None:
    """Have both engines answer what comes before the passages; None if too few answers are long enough to
    tell. Raises BackendError.
    """
    began, seconds = clock(), turn_seconds(None)
    pairs: list[tuple[float, float]] = []
    _both(without, using, passages[0], _WARM_UP, seconds)
    for number, passage in enumerate(passages):
        if len(pairs) >= LEAST_ANSWERS and clock() - began > AUTO_S:
            break
        pair, rate = _both(without, using, passage, ANSWER_TOKENS, seconds, turned=number % 2 == 1)
        seconds = turn_seconds(rate)
        if pair is not None:
            pairs.append(pair)
    return gain_of(pairs)


def gain_of(pairs: Sequence[tuple[float, float]]) -> Gain | None:
    """From the milliseconds of the same tokens without and with the draft: the ratio of the sums, and its
    standard error as an estimate from a sample of answers (Cochran 1977, §6.4).
    """
    count = len(pairs)
    if count < LEAST_ANSWERS:
        return None
    slow, fast = (sum(column) for column in zip(*pairs, strict=True))
    speed = slow / fast
    spread = sum((one - speed * other) ** 2 for one, other in pairs) / (count * (count - 1))
    return Gain(speed, sqrt(spread) * count / fast, count)


def _both(
    without: Engine,
    using: Engine,
    passage: Passage,
    tokens: int,
    seconds: float,
    *,
    turned: bool = False,
) -> tuple[tuple[float, float] | None, float | None]:
    """(the milliseconds of an answer without and with the draft, None of one too short; the rate without)."""
    prompt = list(passage.tokens[: passage.first])
    room = min(engine.model.info.context_length for engine in (without, using)) - len(prompt) - 1
    if room < 1:
        return None, None
    params = SamplingParams(temperature=passage.temperature, seed=passage.seed, max_tokens=min(tokens, room))
    sides = {"without": without, "using": using}
    order = reversed(sides) if turned else iter(sides)
    answers = {name: EngineAnswer(sides[name].stream(prompt, params), prompt) for name in order}
    found = dict(in_slices(answers, seconds))
    slow, fast = found["without"], found["using"]
    if slow.rate is None or fast.rate is None:
        return None, slow.rate
    return (slow.decode_ms, 1e3 * (slow.count - 1) / fast.rate), slow.rate
