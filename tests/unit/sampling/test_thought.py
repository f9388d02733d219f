"""An answer followed through its thought: places, forced tokens, what may follow, and drafts cut to it."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from foredraft.sampling.guide import Guide
from foredraft.sampling.thought import ThoughtGuide, Tracker, answer_guide, plan_of
from foredraft.testing import FakeTokenizer
from foredraft.types import Constraint, Draft, Place, SamplingParams, Thinking

END = 256


class Joined(FakeTokenizer):
    """Bytes, and tokens of several letters: one ends a mark and goes on, one has a mark and more."""

    LONG = ("<think>", "</think>", ">{", "</think>ab", "<think>\n", ">\n\n")

    def __init__(self) -> None:
        super().__init__(258 + len(self.LONG))

    def token_bytes(self, token: int) -> bytes:
        return self.LONG[token - 258].encode() if token >= 258 else super().token_bytes(token)

    def encode(self, text: str, *, special: bool = False, add_bos: bool = False) -> list[int]:
        pieces = re.split("(</?think>)", text) if special else [text]
        return [
            token
            for piece in pieces
            for token in ([258 + self.LONG.index(piece)] if piece in self.LONG else piece.encode())
        ]


TOKENIZER = Joined()
OPEN, CLOSE, GOES_ON, WHOLE, OPEN_LINE, CLOSE_LINES = range(258, 264)
SPELLED = Thinking("<think>", "</think>", "\n</think>\n\n")
OPENED = replace(SPELLED, begun=True)
ENDING = [ord("\n"), CLOSE, *b"\n\n"]


def tracker(thinking: Thinking, budget: int | None = None, constraint: Constraint | None = None) -> Tracker:
    params = SamplingParams(thinking=thinking, reasoning_budget=budget, constraint=constraint)
    plan = plan_of(params, TOKENIZER)
    assert plan is not None
    return Tracker.begin(plan)


def guide(thinking: Thinking, budget: int | None = None, regex: str | None = None) -> ThoughtGuide:
    constraint = None if regex is None else Constraint("regex", regex)
    made = answer_guide(
        SamplingParams(thinking=thinking, reasoning_budget=budget, constraint=constraint), TOKENIZER
    )
    assert isinstance(made, ThoughtGuide)
    return made


def allowed(it: ThoughtGuide, extra: list[int] | None = None) -> set[int]:
    row = it.mask(np.zeros(TOKENIZER.vocab_size, np.float32), extra or ())
    return set(np.flatnonzero(row > -np.inf).tolist())


@pytest.mark.parametrize(
    ("tokens", "place"),
    [
        ([], Place.BEFORE),
        (list(b" \n"), Place.BEFORE),
        (list(b"<thi"), Place.BEFORE),
        (list(b"<thin>"), Place.ANSWER),
        ([OPEN], Place.INSIDE),
        ([ord("\n"), OPEN], Place.INSIDE),
        (list(b"<think>"), Place.INSIDE),
        ([OPEN_LINE, *b"hm", CLOSE], Place.ANSWER),
        ([OPEN, *b"hm</think>"], Place.ANSWER),
        ([OPEN, *b"hm</think", CLOSE_LINES], Place.ANSWER),
        ([OPEN, *b"hm</thinker>"], Place.INSIDE),
        (list(b"no <think>"), Place.ANSWER),
        (list(b"\v\f\t<think>"), Place.INSIDE),
        (list("\u00a0<think>".encode()), Place.ANSWER),
        (list(b"\x1c<think>"), Place.ANSWER),
    ],
)
def test_the_place_after_some_tokens(tokens: list[int], place: Place) -> None:
    it = tracker(SPELLED)
    for token in tokens:
        it.advance(token)
    assert it.place is place


def test_without_budget_and_constraint_there_is_no_guide() -> None:
    assert answer_guide(SamplingParams(thinking=SPELLED), TOKENIZER) is None
    assert answer_guide(SamplingParams(reasoning_budget=3), TOKENIZER) is None
    plain = answer_guide(SamplingParams(constraint=Constraint("regex", "ab")), TOKENIZER)
    assert isinstance(plain, Guide)


@pytest.mark.parametrize("budget", [0, 1, 4])
def test_a_budget_forces_the_template_s_ending_after_its_tokens(budget: int) -> None:
    it = guide(OPENED, budget)
    for _ in range(budget):
        assert it.forced() == []
        it.advance([ord("a")])
    for at, token in enumerate(ENDING):
        assert it.forced() == ENDING[at:]
        assert allowed(it) == {token}
        it.advance([token])
    assert it.forced() == []
    assert len(allowed(it)) == TOKENIZER.vocab_size


@pytest.mark.parametrize("character", ["é", "€", "🙂"])
def test_a_budget_waits_until_a_character_is_whole(character: str) -> None:
    spelled = list(f"ab{character}".encode())
    for budget in range(3, len(spelled) + 1):
        it = guide(OPENED, budget)
        for token in spelled:
            assert it.forced() == []
            it.advance([token])
        assert it.forced() == ENDING


def test_a_budget_waits_for_three_tokens_at_most() -> None:
    it = guide(OPENED, 2)
    for _ in range(5):
        assert it.forced() == []
        it.advance([0xC3])
    assert it.forced() == ENDING
    it = guide(OPENED, 2)
    it.advance([0xC3, 0xC3, ord("a")])
    assert it.forced() == ENDING


def test_a_forced_token_comes_also_where_it_is_banned() -> None:
    row = np.zeros(TOKENIZER.vocab_size, np.float32)
    row[ord("\n")] = -np.inf
    assert guide(OPENED, 0).mask(row).argmax() == ord("\n")


def test_a_constraint_applies_behind_the_thought_and_the_template_s_white_space() -> None:
    it = guide(OPENED, regex="ab")
    assert {ord("x"), CLOSE} <= allowed(it)
    assert not {END, WHOLE} & allowed(it)
    it.advance([*b"hm</think"])
    assert GOES_ON not in allowed(it)
    assert {ord(">"), CLOSE_LINES} <= allowed(it)
    it.advance([CLOSE_LINES])
    assert allowed(it) == {ord("a")}
    it.advance([*b"ab"])
    assert it.complete


def test_the_template_s_white_space_comes_behind_the_model_s_own_closing() -> None:
    it = guide(OPENED, regex="ab")
    it.advance([*b"hm", CLOSE])
    assert it.forced() == [*b"\n\n"]
    it.advance([*b"\n\n"])
    assert it.forced()[:1] == [ord("a")]


def test_where_the_model_opens_the_thought_it_need_not() -> None:
    it = guide(SPELLED, regex="ab")
    assert allowed(it) == {ord("a"), OPEN}
    assert it.allows(OPEN)
    it.advance([*b"ab"])
    assert it.complete
    it = guide(SPELLED, regex="ab")
    it.advance([OPEN, *b"x"])
    assert ord("y") in allowed(it)


def test_rows_of_a_draft_follow_it_across_the_closing() -> None:
    it = guide(OPENED, 2, regex="ab")
    assert allowed(it, [*b"xy"]) == {ord("\n")}
    assert allowed(it, [*b"xy", *ENDING]) == {ord("a")}
    assert allowed(it, [CLOSE, *b"\n\na"]) == {ord("b")}
    assert it.forced() == []


def test_drafts_are_cut_where_other_tokens_are_forced() -> None:
    it = guide(OPENED, 2, regex="ab")
    wrong, right = [*b"xyz"], [*b"xy", *ENDING, *b"a"]
    found = it.prune(Draft(tuple(wrong), "d"))
    assert found is not None
    assert found.tokens == tuple(wrong[:2])
    assert it.prune(Draft(tuple(right), "d")) == Draft(tuple(right), "d")
    assert it.prune(Draft((END,), "d")) is None
    tree = it.prune(Draft((*b"xyzq", ord("\n")), "d", parents=(-1, 0, 1, 0, 1)))
    assert tree is not None
    assert (tree.tokens, tree.parents) == ((*b"xyq\n",), (-1, 0, 0, 1))


def test_budgets_are_checked() -> None:
    from foredraft.errors import RequestError
    from foredraft.sampling.params import validate_params

    for wrong in (-1, 1.5, True):
        with pytest.raises(RequestError, match="reasoning_budget"):
            validate_params(SamplingParams(reasoning_budget=wrong), 10)  # type: ignore[arg-type]
    with pytest.raises(RequestError, match="thinking"):
        validate_params(SamplingParams(thinking="yes"), 10)  # type: ignore[arg-type]
