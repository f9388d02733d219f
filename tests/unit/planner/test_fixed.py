"""Named drafters without `auto`: they always draft, and the one that has been right is preferred."""

from __future__ import annotations

import numpy as np

from foredraft.planner.fixed import FixedPlanner
from foredraft.protocols import RequestView
from foredraft.types import Draft, Load
from planner_rounds import Game, all_right, all_wrong, chain, linear, teach

VIEW = RequestView(1, [0], prompt_length=1)
LOAD = Load(1, 0, 1)


def test_every_drafter_drafts_for_every_request_from_the_start() -> None:
    planner = FixedPlanner()
    limits = planner.limits([VIEW, VIEW], ["a", "b"], LOAD)
    assert set(limits) == {"a", "b"}
    assert all(limit is not None and limit.max_tokens > 1000 for both in limits.values() for limit in both)
    assert [len(both) for both in limits.values()] == [2, 2]
    assert planner.reason() is None


def test_what_was_drafted_is_verified_whole_whatever_it_costs() -> None:
    planner = FixedPlanner()
    teach(planner, linear(5.0))
    game = Game(planner, linear(5.0))
    for chosen in game.play(30, [chain(48)], all_wrong):
        assert chosen is not None
        assert len(chosen) == 48


def test_no_candidate_is_plain_decoding() -> None:
    assert FixedPlanner().choose([VIEW, VIEW], [[], []], LOAD) == [None, None]


def test_each_request_gets_a_draft_of_its_own() -> None:
    other = RequestView(2, [0], prompt_length=1)
    chosen = FixedPlanner().choose([VIEW, other], [[chain(2)], [chain(5)]], LOAD)
    assert [draft and len(draft) for draft in chosen] == [2, 5]


def test_the_source_that_has_been_right_is_preferred_until_it_is_wrong() -> None:
    game = Game(FixedPlanner(), linear(0.1))
    left, right = chain(4, "left"), chain(4, "right")
    for better in ("left", "right", "left"):
        played = game.play(300, [left, right], lambda draft, better=better: 4 * (draft.source == better))  # type: ignore[misc]
        assert {draft.source for draft in played[-20:] if draft is not None} == {better}


def test_a_longer_draft_wins_over_a_shorter_one_of_the_same_quality() -> None:
    game = Game(FixedPlanner(), linear(0.1))
    chosen = game.play(50, [chain(3, "a"), chain(9, "b")], all_right)[-1]
    assert chosen is not None
    assert chosen.source == "b"


def test_a_sampled_draft_goes_before_all_others() -> None:
    drawn = Draft((1,), "draft-model", probs=(np.full(4, 0.25),))
    assert FixedPlanner().choose([VIEW], [[chain(40), drawn]], LOAD) == [drawn]
