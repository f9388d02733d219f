"""An answer that repeats itself without end: found exactly, whatever speculation does, and not too soon."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from foredraft import Engine, FinishReason
from foredraft.engine import request
from foredraft.engine.request import (
    MAX_PASSAGE_TOKENS,
    MIN_COPIES,
    MIN_REPEATED_TOKENS,
    REPETITION_CHECK_TOKENS,
    repeats,
)
from foredraft.planner import StaticPlanner
from foredraft.testing import FakeModel, ScriptedDrafter
from foredraft.types import Logits

VOCABULARY = 258


def noise(count: int, seed: int = 0) -> list[int]:
    return random.Random(seed).choices(range(200), k=count)


def rows(length: int, copies: int) -> list[int]:
    return noise(length, seed=length) * copies


@pytest.mark.parametrize("length", [1, 2, 7, 34, 100, MAX_PASSAGE_TOKENS])
def test_enough_copies_are_found_and_one_token_less_is_not(length: int) -> None:
    span = max(MIN_REPEATED_TOKENS, MIN_COPIES * length)
    tokens = [*noise(500, seed=9), 250, *rows(length, -(-span // length))[-span:]]
    assert repeats(tokens)
    assert not repeats(tokens[:-1])


@pytest.mark.parametrize(
    ("length", "copies"),
    [(2, 100), (7, 100), (12, 50), (20, 30), (34, 20), (100, 7), (256, 7)],
)
def test_a_list_of_rows_that_was_asked_for_is_not_cut(length: int, copies: int) -> None:
    assert not repeats(noise(400) + rows(length, copies))


def test_rows_that_count_up_are_no_repetition() -> None:
    tokens = [token for number in range(400) for token in (*noise(9, seed=3), 210 + number % 40)]
    assert not repeats(tokens[: 39 * 10])
    assert not repeats(tokens), "the passage of 40 rows is longer than what is looked for"


def test_one_token_that_differs_begins_it_anew() -> None:
    tokens = rows(10, 200)
    tokens[-MIN_REPEATED_TOKENS] = 255
    assert not repeats(tokens)
    tokens = rows(10, 200)
    tokens[-1] = 255
    assert not repeats(tokens)


def test_the_prompt_does_not_count() -> None:
    tokens = rows(10, 100)
    assert repeats(tokens)
    assert not repeats(tokens, 300)


def saying(next_token: Callable[[int], int], prompt: int) -> Callable[[Sequence[int]], Logits]:
    def logits(prefix: Sequence[int]) -> Logits:
        row = np.zeros(VOCABULARY, np.float32)
        row[next_token(len(prefix) - prompt)] = 1.0
        return row

    return logits


PROMPT = [1, 2, 3]


def answer(next_token: Callable[[int], int], drafted: int, **sampling: object) -> tuple[tuple[int, ...], str]:
    """The tokens of an answer and why it ended; `drafted` right tokens are proposed in every round."""

    def propose(history: Sequence[int]) -> list[int]:
        at = len(history) - len(PROMPT)
        return [next_token(at + i) for i in range(drafted)]

    model = FakeModel(logits=saying(next_token, len(PROMPT)), context_length=4096)
    drafters = [ScriptedDrafter(propose)] if drafted else []
    with Engine(model, drafters=drafters, planner=StaticPlanner()) as engine:
        completion = engine.generate(PROMPT, max_tokens=2000, ignore_eos=True, **sampling)  # type: ignore[arg-type]
    return completion.tokens, completion.finish_reason


def after_a_while(at: int) -> int:
    return noise(300)[at] if at < 300 else at % 34


@pytest.mark.parametrize("drafted", [1, 5, 37])
def test_the_same_bytes_with_speculation_and_without(drafted: int) -> None:
    plain = answer(after_a_while, 0, stop_repetition=True)
    assert plain[1] is FinishReason.REPETITION
    assert (
        300 + MIN_REPEATED_TOKENS <= len(plain[0]) < 300 + MIN_REPEATED_TOKENS + REPETITION_CHECK_TOKENS + 34
    )
    assert answer(after_a_while, drafted, stop_repetition=True) == plain


def test_off_unless_asked_for() -> None:
    tokens, reason = answer(after_a_while, 5)
    assert (len(tokens), reason) == (2000, FinishReason.LENGTH)


def test_an_answer_that_goes_on_is_not_ended() -> None:
    fresh = noise(2000, seed=4)
    assert answer(fresh.__getitem__, 0, stop_repetition=True)[1] is FinishReason.LENGTH


def test_it_is_looked_for_every_few_tokens_only(monkeypatch: pytest.MonkeyPatch) -> None:
    lengths: list[int] = []

    def never(tokens: Sequence[int], begin: int) -> bool:
        lengths.append(len(tokens) - begin)
        return False

    monkeypatch.setattr(request, "repeats", never)
    answer(after_a_while, 5, stop_repetition=True)
    assert lengths == list(range(MIN_REPEATED_TOKENS, 2000, REPETITION_CHECK_TOKENS))
