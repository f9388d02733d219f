"""`auto` with a target that verifies trees: width where it pays, and nothing else changed."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from foredraft.planner.adaptive import AdaptivePlanner
from foredraft.planner.decision import width_of
from foredraft.protocols import RequestView
from foredraft.types import Draft, Load, Outcome, Probs, Round, SamplingParams, Verdict, VerifyRule
from foredraft.verification.tree import verify_tree
from planner_rounds import PLAIN_MS, Curve, linear, teach

CHEAP, STEEP = linear(0.05), linear(0.7)
LEFT, RIGHT = Draft(tuple(range(10, 18)), "left"), Draft(tuple(range(20, 28)), "right")
RIGHT_FOR = 3
"""Tokens for which the one is right whose turn it is."""


def accepted_of(draft: Draft, text: Sequence[int]) -> Verdict:
    """What a target commits that goes on with `text` and then with 99."""
    parents = draft.parents or tuple(range(-1, len(draft) - 1))

    def choose(row: int) -> int:
        depth, node = 0, row - 1
        while node >= 0:
            depth, node = depth + 1, parents[node]
        return text[depth] if depth < len(text) else 99

    return verify_tree(draft.tokens, parents, choose)


class Played:
    """One request whose next tokens are the first of `LEFT` or of `RIGHT`, by a coin."""

    def __init__(self, curve: Curve, *, trees: bool, params: SamplingParams | None = None) -> None:
        self.planner, self.curve = AdaptivePlanner(trees=trees), curve
        teach(self.planner, curve)
        self.request = RequestView(1, [0], params or SamplingParams(), prompt_length=1)
        self.coin = random.Random(3)
        self.ms = 0.0
        self.tokens = 0

    def round(self, drafts: Sequence[Draft]) -> Draft | None:
        load = Load(1, 0, len(self.request.tokens))
        self.planner.limits([self.request], [draft.source for draft in drafts], load)
        [chosen] = self.planner.choose([self.request], [drafts], load)
        text = self.coin.choice((LEFT, RIGHT)).tokens[:RIGHT_FOR]
        committed: tuple[int, ...] = (text[0],)
        accepted = 0
        if chosen is not None:
            verdict = accepted_of(chosen, text)
            committed, accepted = verdict.tokens, verdict.accepted
        rows = 1 + (len(chosen) if chosen else 0)
        ms = PLAIN_MS * self.curve(rows)
        outcome = Outcome(len(self.request.tokens), committed, chosen, accepted)
        self.request.tokens.extend(committed)
        spent = {draft.source: 0.001 for draft in drafts}
        self.planner.observe(Round(load, rows, spent, ms, 0.0, ((1, outcome),)))
        self.ms += ms
        self.tokens += len(committed)
        return chosen

    def play(self, rounds: int, drafts: Sequence[Draft] = (LEFT, RIGHT)) -> list[Draft | None]:
        return [self.round(drafts) for _ in range(rounds)]

    @property
    def rate(self) -> float:
        return self.tokens * PLAIN_MS / self.ms


def test_where_sources_differ_and_rows_are_cheap_both_are_verified() -> None:
    chains, trees = Played(CHEAP, trees=False), Played(CHEAP, trees=True)
    chains.play(300)
    last = trees.play(300)[-50:]
    wide = [draft for draft in last if draft is not None and width_of(draft.parents) == 2]
    assert len(wide) >= 45
    assert {draft.source for draft in wide} == {"left+right"}
    assert trees.rate > 1.3 * chains.rate


def test_where_rows_are_dear_there_are_no_trees() -> None:
    chains, trees = Played(STEEP, trees=False), Played(STEEP, trees=True)
    chains.play(300)
    played = trees.play(300)
    assert all(draft is None or draft.parents is None for draft in played)
    assert trees.rate >= 0.97 * max(chains.rate, 1.0)


def test_without_trees_chains_are_chosen_as_ever() -> None:
    assert all(draft is None or draft.parents is None for draft in Played(CHEAP, trees=False).play(200))


@pytest.mark.parametrize("verify", ["rejection", "block"])
def test_rules_that_sample_get_no_merged_drafts(verify: VerifyRule) -> None:
    params = SamplingParams(temperature=0.8, verify=verify)
    played = Played(CHEAP, trees=True, params=params).play(200)
    assert all(draft is None or draft.parents is None for draft in played)
    greedy = replace(params, temperature=0.0)  # which leaves those rules nothing to sample
    assert any(draft and draft.parents for draft in Played(CHEAP, trees=True, params=greedy).play(200))


def test_a_sampled_draft_stays_whole_and_alone() -> None:
    probs: Probs = np.full(30, 1 / 30)
    drawn = Draft((10, 11), "model", probs=(probs, probs))
    params = SamplingParams(temperature=0.8, verify="block")
    played = Played(CHEAP, trees=True, params=params).play(60, (LEFT, drawn))
    assert all(draft is None or draft is drawn or draft.source == "left" for draft in played)
    assert any(draft is drawn for draft in played)


def test_a_tree_brings_credit_to_all_that_drew_it() -> None:
    played = Played(CHEAP, trees=True)
    assert any(draft and draft.source == "left+right" for draft in played.play(200))
    assert played.planner.reason() is None


def test_requests_that_share_a_forward_share_the_room_for_trees() -> None:
    planner = AdaptivePlanner(trees=True)
    teach(planner, CHEAP)
    views = [RequestView(number, [0], prompt_length=1) for number in (1, 2, 3)]
    load = Load(3, 0, 1)
    widths: list[int] = []
    rng = random.Random(4)  # turns could be foretold
    for _ in range(150):
        planner.limits(views, ["left", "right"], load)
        chosen = planner.choose(views, [[LEFT, RIGHT]] * 3, load)
        outcomes = []
        for view, draft in zip(views, chosen, strict=True):
            text = rng.choice((LEFT, RIGHT)).tokens[:RIGHT_FOR]
            right = 0
            if draft is not None:
                widths.append(width_of(draft.parents))
                right = accepted_of(draft, text).accepted
            outcomes.append((view.id, Outcome(len(view.tokens), (*text, 99)[: right + 1], draft, right)))
            view.tokens.extend((*text, 99)[: right + 1])
        rows = 3 + sum(len(draft) for draft in chosen if draft)
        spent = {"left": 0.001, "right": 0.001}
        planner.observe(Round(load, rows, spent, PLAIN_MS * CHEAP(rows), 0.0, tuple(outcomes)))
    assert set(widths[-30:]) == {2}
