"""The order of live measurement, conversations, and prompts that do not fit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from foredraft import Engine
from foredraft.bench.live import (
    LEAD_INS,
    WARM_UP,
    WARM_UP_TOKENS,
    measure,
    turn_ids,
    warm_up,
)
from foredraft.bench.passes import Passes
from foredraft.bench.results import Sample, scores
from foredraft.bench.sides import EngineSide, Messages
from foredraft.bench.workloads import PromptCase
from foredraft.errors import ContextLengthError
from foredraft.testing import FakeModel, markov_logits
from foredraft.types import SamplingParams

PARAMS = SamplingParams(max_tokens=24, ignore_eos=True)


class Scribe:
    """A side that writes down what it was asked."""

    def __init__(
        self, name: str, log: list[str], most: int = 1000, tokens: Mapping[str, int] | None = None
    ) -> None:
        self.name = name
        self.asked: list[list[str]] = []
        self._log = log
        self._most = most
        self._tokens = tokens or {}

    def restart(self) -> None:
        self._log.append(f"{self.name} restarts")

    def answer(self, messages: Messages, params: SamplingParams) -> Sample:
        words = [f"{message['role']}: {message['content']}" for message in messages]
        if sum(map(len, words)) > self._most:
            raise ContextLengthError("too long")
        self.asked.append(words)
        self._log.append(f"{self.name} {messages[-1]['content']}")
        count = self._tokens.get(messages[-1]["content"], 9)
        return Sample(text=f"{self.name}'s answer", count=count, decode_ms=8.0)

    def close(self) -> None:
        self._log.append(f"{self.name} closes")


def cases(*names: str) -> list[PromptCase]:
    return [PromptCase(name, "chat", (name,)) for name in names]


def test_sides_take_turns_in_an_order_that_alternates() -> None:
    log: list[str] = []
    sides = [Scribe("a", log), Scribe("b", log)]
    rows = list(measure(sides, Passes(cases("1", "2"), 2), PARAMS))
    assert log == [
        *("a restarts", "b restarts", "a 1", "b 1", "b 2", "a 2"),
        *("a restarts", "b restarts", "b 1", "a 1", "a 2", "b 2"),
    ]
    assert [(row.prompt, row.setting, row.repeat) for row in rows] == [
        *(("1", "a", 0), ("1", "b", 0), ("2", "b", 0), ("2", "a", 0)),
        *(("1", "b", 1), ("1", "a", 1), ("2", "a", 1), ("2", "b", 1)),
    ]


def test_short_answers_are_measured_in_further_passes_of_their_own() -> None:
    """Each begins with sides that have learnt nothing, and the order goes on alternating."""
    log: list[str] = []
    sides = [Scribe("a", log, tokens={"2": 20}), Scribe("b", log)]
    rows = list(measure(sides, Passes(cases("1", "2"), 1, enough=20), PARAMS))
    assert log == [
        *("a restarts", "b restarts", "a 1", "b 1", "b 2", "a 2"),
        *("a restarts", "b restarts", "b 1", "a 1"),
        *("a restarts", "b restarts", "a 1", "b 1"),
    ]
    assert [row.repeat for row in rows if row.prompt == "1"] == [0, 0, 1, 1, 2, 2]
    assert [len(score.passes) for score in scores(rows, "a")] == [3, 3, 1, 1]


class Pupil(Scribe):
    """A side that learns how many answers it gave, and writes down how long its lead-ins are."""

    def __init__(self, name: str, log: list[str]) -> None:
        super().__init__(name, log)
        self._answers = 0

    def restart(self) -> None:
        self._answers = 0

    def learnt(self) -> Mapping[str, object]:
        return {"answers": self._answers}

    def recall(self, learnt: Mapping[str, object]) -> None:
        self._log.append(f"{self.name} knows {learnt['answers']}")

    def answer(self, messages: Messages, params: SamplingParams) -> Sample:
        if messages == WARM_UP:
            self._log.append(f"{self.name} leads in {params.max_tokens}")
            return Sample(text="", count=9, decode_ms=8.0)
        self._answers += 1
        return super().answer(messages, params)


def test_in_further_passes_sides_know_what_they_knew_in_the_first() -> None:
    log: list[str] = []
    list(measure([Pupil("a", log), Scribe("b", [])], Passes(cases("1", "2", "3"), 1, enough=18), PARAMS))
    assert log[:3] == ["a 1", "a 2", "a 3"]
    lead_in = f"a leads in {WARM_UP_TOKENS - 1}"
    assert log[3:] == [it for i in range(3) for it in (lead_in, f"a knows {i}", f"a {i + 1}")]


def test_lead_ins_end_at_different_tokens_from_pass_to_pass() -> None:
    """What is asked every other round would otherwise be asked at the same tokens in all of them."""
    log: list[str] = []
    list(measure([Pupil("a", log)], Passes(cases("1"), 1, enough=9 * (LEAD_INS + 2)), PARAMS))
    lengths = [int(entry.split()[-1]) for entry in log if "leads in" in entry]
    assert set(lengths) == {WARM_UP_TOKENS - i for i in range(LEAD_INS)}


def holds(state: object, part: object) -> bool:
    """Whether all of `part` is in a state; the state may hold more."""
    if isinstance(part, Mapping) and isinstance(state, Mapping):
        return all(key in state and holds(state[key], value) for key, value in part.items())
    return state == part


def test_an_engine_knows_again_what_it_had_learnt() -> None:
    side = EngineSide("auto", engine())
    side.restart()
    side.answer([{"role": "user", "content": "abcabc"}], PARAMS)
    learnt = side.learnt()
    side.restart()
    side.answer([{"role": "user", "content": "lead in"}], SamplingParams(max_tokens=7, ignore_eos=True))
    assert not holds(side.learnt(), learnt)
    side.recall(learnt)
    assert holds(side.learnt(), learnt)
    plain = EngineSide("off", engine())
    plain.recall(plain.learnt())
    assert plain.learnt() == {}


def test_rows_come_as_they_are_measured() -> None:
    log: list[str] = []
    rows = measure([Scribe("a", log)], Passes(cases("1", "2"), 1), PARAMS)
    next(rows)
    assert log == ["a restarts", "a 1"]


@pytest.mark.parametrize(("turns", "asked"), [(1, 1), (2, 2), (9, 3)])
def test_all_sides_are_asked_the_same_conversation(turns: int, asked: int) -> None:
    sides = [Scribe("a", []), Scribe("b", [])]
    talk = [PromptCase("talk", "chat", ("One?", "Two?", "Three?"))]
    rows = list(measure(sides, Passes(talk, 1), PARAMS, turns=turns))
    assert sides[0].asked == sides[1].asked
    assert len(sides[0].asked) == asked
    assert list(dict.fromkeys(row.prompt for row in rows)) == turn_ids(talk, turns)
    assert turn_ids(talk, turns) == ["talk", "talk#2", "talk#3"][:asked]
    if asked > 1:
        assert sides[1].asked[1] == ["user: One?", "assistant: a's answer", "user: Two?"]


def test_what_does_not_fit_is_left_out() -> None:
    talk = [PromptCase("long", "chat", ("x" * 99,)), PromptCase("talk", "chat", ("One?", "y" * 99, "Three?"))]
    side = Scribe("a", [], most=50)
    rows = list(measure([side], Passes(talk, 1), PARAMS, turns=3))
    assert [row.prompt for row in rows] == ["talk"]


def test_what_does_not_fit_into_one_of_several_contexts_is_named() -> None:
    """The other one may have answered by then."""
    sides = [Scribe("a", []), Scribe("b", [], most=50)]
    too_long: set[str] = set()
    talk = [PromptCase("long", "chat", ("x" * 99,)), PromptCase("talk", "chat", ("One?",))]
    rows = list(measure(sides, Passes(talk, 1), PARAMS, too_long=too_long))
    assert too_long == {"long"}
    assert [(row.prompt, row.setting) for row in rows] == [("long", "a"), ("talk", "b"), ("talk", "a")]


def engine() -> Engine:
    return Engine(FakeModel(6, logits=markov_logits(6, order=1, scale=8.0), context_length=600))


def test_engines_in_turns_give_the_same_tokens() -> None:
    settings: Sequence[str] = ("off", "auto", "ngram-simple:n=3,m=4")
    sides = [EngineSide(name, engine()) for name in settings]
    warm_up(sides)
    rows = list(measure(sides, Passes(cases("abc", "fed"), 2), PARAMS))
    assert len(rows) == 2 * 3 * 2
    found = scores(rows, "off")
    assert [score.different for score in found] == [False] * 6
    assert all(score.exact for score in found)
    assert any(score.accepted for score in found)
