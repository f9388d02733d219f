"""The simulation of many replicas: what routers know, and that the same seed gives the same figures."""

from __future__ import annotations

from argparse import Namespace

import pytest

import scale

ARGUMENTS = Namespace(
    curve="gpu",
    sequences=4,
    conversations=10,
    every=6.0,
    applications=24,
    fronts=2,
    speculate="ngram-simple:n=3,m=8",
)


def simulated(router: str) -> scale.Figures:
    return scale.simulate(ARGUMENTS, 2, router, seed=3)


def test_a_router_with_what_was_sent_where_saves_reading() -> None:
    prefix, least = simulated("prefix"), simulated("least")
    assert prefix.cached / prefix.prompt > least.cached / least.prompt


@pytest.mark.parametrize("router", list(scale.ROUTERS))
def test_the_same_seed_gives_the_same_figures(router: str) -> None:
    first, again = simulated(router), simulated(router)
    assert first == again
    assert first.tokens > 0
    assert 0 < first.cached < first.prompt
    assert all(second > 0 for second in first.first_s)


def test_each_question_holds_all_that_was_said_before() -> None:
    for talk in scale.conversations(1, 20, 1.0, 24):
        for before, after in zip(talk.turns, talk.turns[1:], strict=False):
            assert after.prompt[: len(before.prompt)] == before.prompt
            assert after.prompt[len(before.prompt) :][: len(before.output)] == before.output


def test_beginnings_are_whole_blocks() -> None:
    prompt = list(range(3 * scale.BLOCK + 5))
    found = scale.beginnings(prompt)
    assert len(found) == 3
    assert scale.beginnings([*prompt[: 2 * scale.BLOCK], 7, *prompt])[:2] == found[:2]
    assert scale.beginnings([7, *prompt])[0] != found[0]
