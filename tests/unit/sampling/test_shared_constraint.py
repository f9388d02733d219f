"""Requests that share a compiled constraint, and drafts that are tried: none takes states from another."""

from __future__ import annotations

import random
from contextlib import suppress

import numpy as np
import pytest

from foredraft.errors import NoNextTokenError
from foredraft.sampling import trial
from foredraft.sampling.constraint import compile_constraint
from foredraft.sampling.guide import Guide
from foredraft.testing import FakeTokenizer
from foredraft.types import Constraint, Draft

HUNGRY = Constraint("regex", "(a|b)*a(a|b){16}c")
"""Each text takes some states of its lexer for itself, up to 131,072."""

ROW = np.zeros(258, np.float32)
LENGTH = 600


@pytest.fixture
def tokenizer() -> FakeTokenizer:
    return FakeTokenizer()


def text(seed: int) -> list[int]:
    return random.Random(seed).choices(b"ab", k=LENGTH)


def plain(follower: Guide, tokens: list[int]) -> int:
    """How many tokens come until the constraint says that it became too complex."""
    for place, token in enumerate(tokens):
        try:
            follower.mask(ROW)
        except NoNextTokenError:
            return place
        assert not follower.forced()
        assert follower.allows(token)
        assert not follower.allows(ord("x"))
        follower.advance([token])
    return len(tokens)


def drafted(follower: Guide, tokens: list[int], seed: int) -> int:
    """The same with drafts: chains and trees of which little comes true."""
    chance = random.Random(seed)
    for place, token in enumerate(tokens):
        other = tuple(chance.choices(b"ab", k=12))
        follower.prune(Draft(other, "fake"))
        follower.prune(Draft(other, "fake", parents=(-1, 0, 1, 2, 3, 4, -1, 6, 7, 8, 7, 10)))
        with suppress(NoNextTokenError):  # what is not committed may be too complex
            follower.mask(ROW, other)
        try:
            follower.mask(ROW)
        except NoNextTokenError:
            return place
        follower.advance([token])
    return len(tokens)


def test_requests_do_not_use_up_each_others_states(
    tokenizer: FakeTokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trial, "MAX_LEXER_STATES", 3000)
    for seed in range(6):
        assert plain(compile_constraint(HUNGRY, tokenizer), text(seed)) == LENGTH


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("states", [150, 600, 3000])
def test_an_answer_ends_where_it_ends_without_drafts(
    tokenizer: FakeTokenizer, monkeypatch: pytest.MonkeyPatch, states: int, seed: int
) -> None:
    monkeypatch.setattr(trial, "MAX_LEXER_STATES", states)
    tokens = text(seed)
    alone = plain(compile_constraint(HUNGRY, FakeTokenizer()), tokens)
    assert (alone == LENGTH) == (states == 3000)
    for order in range(2):  # first a drafted one, then one that finds the states used up
        assert drafted(compile_constraint(HUNGRY, tokenizer), tokens, seed + order) == alone
        assert plain(compile_constraint(HUNGRY, tokenizer), tokens) == alone


def test_a_tree_that_runs_into_the_limit_takes_nothing_from_the_answer(
    tokenizer: FakeTokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trial, "MAX_LEXER_STATES", 300)
    chance = random.Random(1)
    follower = compile_constraint(HUNGRY, tokenizer)
    follower.advance(list(b"abab"))
    tree = chance.choices(b"ab", k=2000)
    parents = [place - 1 if place % 20 else -1 for place in range(2000)]
    follower.prune(Draft(tuple(tree), "fake", parents=tuple(parents)))
    follower.advance(list(b"a" + b"b" * 16))
    assert follower.allows(ord("c"))
