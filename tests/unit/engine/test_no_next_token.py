"""A constraint that leaves no token within an answer ends it with a reason; others do not feel it."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from foredraft import Completion, Engine, FinishReason, SamplingParams
from foredraft.protocols import Drafter
from foredraft.sampling import constraint
from foredraft.testing import FakeModel, FakeTokenizer, ScriptedDrafter
from foredraft.types import Constraint

PROMPT = [0, 1, 2]
DEAD_END = SamplingParams(max_tokens=40, constraint=Constraint("regex", "abcab[x-z]c"))
"""For a vocabulary of a to e."""

AMBIGUOUS = SamplingParams(
    max_tokens=4000,
    ignore_eos=True,
    constraint=Constraint("grammar", 'start: a\na: "a" | a a | a a a | a a a a'),
)


@pytest.fixture(autouse=True)
def _soon_too_complex(monkeypatch: pytest.MonkeyPatch) -> None:
    """llguidance's limit on what may come next at once is reached after some tokens."""
    from llguidance import LLParserLimits

    monkeypatch.setattr(constraint, "limits", lambda: LLParserLimits(max_items_in_row=100))


class Letters(FakeModel):
    """Knows the letters a to e, and an end."""

    def __init__(self) -> None:
        super().__init__(vocab_size=6)
        self.tokenizer = FakeTokenizer(6)


def generate(params: SamplingParams, drafters: Sequence[Drafter] = ()) -> Completion:
    with Engine(Letters(), drafters=list(drafters)) as engine:
        return engine.generate(PROMPT, params)


@pytest.mark.parametrize(
    "drafters",
    [[], [ScriptedDrafter(lambda _: [0, 1, 2, 0, 1, 3, 2])], [ScriptedDrafter(lambda tokens: [0, 1])]],
    ids=["plain", "a chain", "a short one"],
)
def test_an_answer_that_cannot_go_on_ends_with_a_reason(drafters: list[Drafter]) -> None:
    answer = generate(DEAD_END, drafters)
    assert answer.tokens == (0, 1, 2, 0, 1)
    assert answer.finish_reason is FinishReason.LENGTH
    assert answer.error is None
    assert answer.notice is not None
    assert "no token of this vocabulary may follow" in answer.notice


def test_a_constraint_that_becomes_too_complex_ends_an_answer() -> None:
    answer = generate(AMBIGUOUS)
    assert answer.finish_reason is FinishReason.LENGTH
    assert answer.notice is not None
    assert 10 < len(answer.tokens) < 4000
    assert set(answer.tokens) == {0}
    drafted = generate(AMBIGUOUS, [ScriptedDrafter(lambda _: [0] * 8)])
    assert drafted.tokens == answer.tokens


def test_other_requests_do_not_feel_it() -> None:
    free = SamplingParams(max_tokens=30, ignore_eos=True)
    with Engine(Letters()) as engine:
        alone = engine.generate(PROMPT, free)
    with Engine(Letters()) as engine:
        asked = [engine.add(PROMPT, params) for params in (free, DEAD_END, AMBIGUOUS, free)]
        one, dead, _, other = engine.run(asked)
        assert one.tokens == other.tokens == alone.tokens
        assert dead.notice
        again = engine.generate(PROMPT, DEAD_END)
        assert again.tokens == dead.tokens
    assert one.notice is None


def test_settings_that_ban_what_the_constraint_wants_end_an_answer_too() -> None:
    params = SamplingParams(
        max_tokens=9, constraint=Constraint("regex", "ab[cd]"), logit_bias={2: -100.0, 3: float("-inf")}
    )
    banned = SamplingParams(
        max_tokens=9,
        constraint=Constraint("regex", "ab[cd]"),
        logit_bias={2: float("-inf"), 3: float("-inf")},
    )
    assert generate(params).finish_reason is FinishReason.STOP
    answer = generate(banned)
    assert (answer.tokens, answer.finish_reason) == ((0, 1), FinishReason.LENGTH)
    assert answer.notice is not None
    assert "No token is allowed" in answer.notice
