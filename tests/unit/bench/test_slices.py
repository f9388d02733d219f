"""Answers in short turns: who has when, and what time counts."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from foredraft import Engine
from foredraft.bench.live import measure
from foredraft.bench.passes import Passes
from foredraft.bench.results import Sample
from foredraft.bench.sides import EngineSide, Side
from foredraft.bench.slices import LONGEST_TURN, TURN_ROUNDS, Turns, in_slices, turn_seconds
from foredraft.bench.workloads import PromptCase
from foredraft.errors import BackendError
from foredraft.testing import FakeModel, markov_logits
from foredraft.types import TARGET, Completion, Event, FinishEvent, Message, SamplingParams, TokenEvent

PROMPT: list[Message] = [{"role": "user", "content": "abc"}]
PARAMS = SamplingParams(max_tokens=40, ignore_eos=True)


class Patient:
    """An answer that takes so many turns."""

    def __init__(self, name: str, turns: int, log: list[str]) -> None:
        self._name, self._left, self._log = name, turns, log

    def go_on(self, seconds: float) -> Sample | None:
        self._log.append(f"{self._name} {seconds}")
        self._left -= 1
        return None if self._left else Sample(text=self._name, count=9, decode_ms=8.0)


def test_answers_take_turns_until_all_are_complete() -> None:
    log: list[str] = []
    answers = {name: Patient(name, turns, log) for name, turns in (("a", 3), ("b", 1), ("c", 2))}
    found = [(name, sample.text) for name, sample in in_slices(answers, 0.5)]
    assert log == ["a 0.5", "b 0.5", "c 0.5", "a 0.5", "c 0.5", "a 0.5"]
    assert found == [("b", "b"), ("c", "c"), ("a", "a")]


def test_a_turn_is_so_many_plain_rounds_and_has_an_end() -> None:
    assert turn_seconds(240.0) == pytest.approx(TURN_ROUNDS / 240)
    assert turn_seconds(2.0) == LONGEST_TURN, "a large model's rounds take long"
    assert turn_seconds(None) == LONGEST_TURN, "nobody knows yet"


class Clock:
    """A clock that is moved by hand."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture(scope="module")
def completion() -> Completion:
    return Engine(FakeModel(6, logits=markov_logits(6, order=1, scale=8.0))).generate(PROMPT, PARAMS)


def events(clock: Clock, completion: Completion, seconds: list[float]) -> Iterator[Event]:
    """A token after each of `seconds`, and the end half a second later."""
    for token, pause in enumerate(seconds):
        clock.now += pause
        yield TokenEvent(0, token, "", TARGET, None)
    clock.now += 0.5
    yield FinishEvent(
        0, completion.finish_reason, "", completion.usage, completion.timings, completion.speculation
    )


def test_only_the_time_of_turns_counts(completion: Completion) -> None:
    clock = Clock()
    turns = Turns(events(clock, completion, [3.0, 0.2, 0.2, 0.2, 0.2]), clock)
    ends = []
    for _ in range(4):
        ends.append(turns.read(0.3))
        clock.now += 1000.0  # somebody else's turn
    assert ends == [False, False, False, True]
    assert [len(turns.seen), turns.prompt_ms] == [6, pytest.approx(3000)]
    assert turns.decode_ms == pytest.approx(800)


def test_an_answer_without_a_token_is_all_prompt(completion: Completion) -> None:
    clock = Clock()
    turns = Turns(events(clock, completion, []), clock)
    assert turns.read(0.1)
    assert turns.prompt_ms == pytest.approx(500)
    assert not turns.decode_ms


def engine() -> Engine:
    return Engine(FakeModel(6, logits=markov_logits(6, order=1, scale=8.0)))


def test_an_answer_in_turns_is_the_answer() -> None:
    """Turns of no time end after each token."""
    side = EngineSide("auto", engine())
    whole = side.answer(PROMPT, PARAMS)
    in_turns = side.begin(PROMPT, PARAMS)
    samples = [in_turns.go_on(0.0) for _ in range(41)]
    assert samples[:-1] == [None] * 40
    assert samples[-1] is not None
    assert samples[-1].tokens == whole.tokens
    assert samples[-1].prompt == whole.prompt
    assert 0 < samples[-1].spent_ms["verify"] <= samples[-1].decode_ms


def test_engines_are_measured_in_turns_and_others_one_by_one() -> None:
    """The first engine that is read from has not ended when the second one begins."""
    begun: list[str] = []

    class Watched(EngineSide):
        def begin(self, messages: list[Message], params: SamplingParams) -> Patient:  # type: ignore[override]
            begun.append(f"{self.name} begins")
            return Patient(self.name, 2, begun)

    class Whole:
        name = "whole"

        def restart(self) -> None: ...

        def answer(self, messages: object, params: object) -> Sample:
            begun.append("whole")
            return Sample(text="", count=9, decode_ms=8.0)

        def close(self) -> None: ...

    sides: list[Side] = [Watched("off", engine()), Whole(), Watched("auto", engine())]
    rows = list(measure(sides, Passes([PromptCase("1", "chat", ("1",))], 1), PARAMS))
    assert begun == ["off begins", "auto begins", *(["off 0.5", "auto 0.5"] * 2), "whole"]
    assert [row.setting for row in rows] == ["off", "auto", "whole"]


def test_turns_are_as_long_as_the_first_sides_last_answer_says() -> None:
    """A hundred tokens a second: a turn of 12 rounds takes 0.12 s."""
    turns: list[float] = []

    class Fast(EngineSide):
        def begin(self, messages: list[Message], params: SamplingParams) -> Fast:  # type: ignore[override]
            return self

        def go_on(self, seconds: float) -> Sample:
            turns.append(seconds)
            return Sample(text="", count=101, decode_ms=1000.0 if self.name == "off" else 200.0)

    sides: list[Side] = [Fast("off", engine()), Fast("auto", engine())]
    cases = [PromptCase(name, "chat", (name,)) for name in ("1", "2")]
    list(measure(sides, Passes(cases, 1), PARAMS))
    assert turns[:2] == [LONGEST_TURN] * 2
    assert turns[2:] == [pytest.approx(TURN_ROUNDS / 100)] * 2


def test_an_answer_that_fails_in_its_turn_is_an_error() -> None:
    broken = engine()
    side = EngineSide("off", broken)
    answer = side.begin(PROMPT, PARAMS)
    assert answer.go_on(0.0) is None
    model = broken.model
    assert isinstance(model, FakeModel)
    model.forward = lambda batch: (_ for _ in ()).throw(BackendError("gone"))  # type: ignore[method-assign]
    with pytest.raises(BackendError, match="gone"):
        answer.go_on(1.0)
