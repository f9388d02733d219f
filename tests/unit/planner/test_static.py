"""Named drafters without `auto`: they always draft, and the one that has been right is preferred."""

from __future__ import annotations

import numpy as np

from foredraft.planner import StaticPlanner
from foredraft.protocols import Proposer, RequestView
from foredraft.types import Draft, Load, Outcome, Reason, Round

VIEW = RequestView(1, [0], prompt_length=1)
OTHER = RequestView(2, [0], prompt_length=1)
LOAD = Load(1, 0, 1)


def started(*requests: RequestView) -> StaticPlanner:
    planner = StaticPlanner()
    for request in requests:
        planner.start(request, [Proposer("a", lambda request: 0), Proposer("b", lambda request: 0)])
    return planner


def chain(length: int, source: str = "a") -> Draft:
    return Draft(tuple(range(1, length + 1)), source, features={"match_length": 2.0})


def test_every_drafter_drafts_for_every_request_from_the_start() -> None:
    limits = started(VIEW, OTHER).limits([VIEW, OTHER], LOAD)
    assert set(limits) == {"a", "b"}
    assert all(limit is not None and limit.max_tokens > 1000 for both in limits.values() for limit in both)
    assert [len(both) for both in limits.values()] == [2, 2]


def test_a_draft_is_verified_whole_and_each_request_gets_its_own() -> None:
    chosen = started(VIEW, OTHER).choose([VIEW, OTHER], [[chain(48)], [chain(5)]], LOAD)
    assert [choice.draft and len(choice.draft) for choice in chosen] == [48, 5]


def test_no_candidate_is_plain_decoding() -> None:
    [choice] = started(VIEW).choose([VIEW], [[]], LOAD)
    assert choice.draft is None
    assert choice.reason is Reason.NOTHING_FOUND


def test_the_source_that_has_been_right_is_preferred_until_it_is_wrong() -> None:
    planner = started(VIEW)
    left, right = chain(4, "left"), Draft((7, 8, 9, 10), "right", features={"match_length": 2.0})
    for better in (left, right, left):
        for _ in range(300):
            [choice] = planner.choose([VIEW], [[left, right]], LOAD)
            outcome = Outcome(1, (*better.tokens, 0), choice.draft, 0)
            planner.observe([Round(LOAD, 5, {}, 1.0, 0.0, ((1, outcome),))])
        assert choice.draft is better


def test_a_sampled_draft_goes_before_all_others() -> None:
    drawn = Draft((1,), "draft-model", probs=(np.full(4, 0.25),))
    [choice] = started(VIEW).choose([VIEW], [[chain(40), drawn]], LOAD)
    assert choice.draft is drawn
