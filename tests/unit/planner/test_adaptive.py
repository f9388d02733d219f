"""`auto`: it drafts where drafting pays, stops where it does not, and finds out when that changes."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import accumulate, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foredraft.engine.warmup import SIZES
from foredraft.planner.adaptive import MARGIN, AdaptivePlanner
from foredraft.planner.asking import FIRST_PROBE
from foredraft.planner.income import INCOME
from foredraft.planner.pace import STALE
from foredraft.planner.stake import SHARE
from foredraft.protocols import RequestView
from foredraft.types import Draft, Load, Outcome, Round
from planner_rounds import BONUS, PLAIN_MS, Curve, Game, all_right, all_wrong, chain, linear, teach

VIEW = RequestView(1, [0], prompt_length=1)
LOAD = Load(1, 0, 1)
CHEAP = linear(0.05)
STEEP = linear(0.7)


def taught(curve: Curve) -> AdaptivePlanner:
    planner = AdaptivePlanner()
    teach(planner, curve)
    return planner


# --- when it drafts ------------------------------------------------------------------------------------


def test_nothing_is_drafted_before_the_cost_of_a_plain_forward_is_known() -> None:
    planner = AdaptivePlanner()
    assert not any(any(limits) for limits in planner.limits([VIEW], ["s"], LOAD).values())
    assert planner.reason()
    planner.observe(Round(LOAD, 1, {}, PLAIN_MS, 0.0, ((1, Outcome(1, (5,))),)))
    [limit] = planner.limits([VIEW], ["s"], LOAD)["s"]
    assert limit is not None
    assert limit.max_tokens > 0


def test_each_drafter_may_draft_for_each_request() -> None:
    limits = taught(CHEAP).limits([VIEW] * 3, ["a", "b"], Load(3, 0, 1))
    assert {name: len(some) for name, some in limits.items()} == {"a": 3, "b": 3}


def test_a_source_that_is_right_is_soon_verified_at_length() -> None:
    game = Game(taught(CHEAP), CHEAP)
    played = game.play(60, [chain(16, match_length=8)], all_right)
    assert all(draft is not None and len(draft) == 16 for draft in played[-20:])
    assert game.planner.reason() is None


def test_a_useless_source_stops_and_comes_back_when_it_is_right_again() -> None:
    game = Game(taught(STEEP), STEEP)
    draft = [chain(6, match_length=4)]
    for _ in range(3):
        assert not any(game.play(400, draft, all_wrong)[-50:]), "it is not verified any more"
        assert game.planner.reason()
        last = game.play(400, draft, all_right)[-50:]
        assert sum(chosen is None for chosen in last) <= 1, "there is no way of no return"
        assert game.planner.reason() is None


def test_a_source_that_failed_in_one_request_is_tried_in_the_next() -> None:
    planner = taught(CHEAP)
    Game(planner, CHEAP).play(200, [chain(6)], all_wrong)
    planner.stop(VIEW)
    after = Game(planner, CHEAP, RequestView(2, [0], prompt_length=1))
    assert all(after.play(300, [chain(6)], all_right)[-20:])


@pytest.mark.parametrize("curve", [CHEAP, STEEP, linear(2.0)], ids=["cheap", "steep", "linear"])
def test_useless_drafts_cost_a_request_next_to_nothing(curve: Curve) -> None:
    for length in (20, 100, 400):
        game = Game(taught(curve), curve)
        while game.tokens < length:
            game.round([chain(16, match_length=12)], all_wrong)
        assert game.ms <= PLAIN_MS * game.tokens * 1.03 + 2 * PLAIN_MS


def test_good_drafts_are_worth_their_rows() -> None:
    game = Game(taught(STEEP), STEEP)
    while game.tokens < 500:
        game.round([chain(16, match_length=12)], all_right)
    assert game.ms < 0.85 * PLAIN_MS * game.tokens


def test_it_says_why_nothing_is_drafted() -> None:
    planner = taught(STEEP)
    game = Game(planner, STEEP)
    game.round([], all_right)
    nothing = planner.reason()
    game.play(200, [chain(4)], all_wrong)
    assert nothing is not None
    assert "finds" in nothing
    assert "pay" in (planner.reason() or "")


# --- drafters that take time ---------------------------------------------------------------------------


def test_a_slow_useless_drafter_takes_a_small_share_of_the_time() -> None:
    game = Game(taught(CHEAP), CHEAP, draft_ms=8.0)
    game.play(100, [chain(4, "slow")], all_wrong)
    before = game.ms
    tokens = game.tokens
    game.play(1500, [chain(4, "slow")], all_wrong)
    assert game.ms - before < 1.03 * PLAIN_MS * (game.tokens - tokens)


def test_a_slow_drafter_is_found_out_to_be_useful_again() -> None:
    game = Game(taught(CHEAP), CHEAP, draft_ms=8.0)
    tried = [draft for draft in game.play(1000, [chain(8, "slow")], all_wrong)[-200:] if draft is not None]
    assert len(tried) < 10
    last = game.play(3000, [chain(8, "slow")], all_right)[-50:]
    assert sum(chosen is None for chosen in last) <= 1


# --- how far -------------------------------------------------------------------------------------------

curves = st.lists(st.floats(0.0, 1.5), min_size=20, max_size=20).map(
    lambda steps: list(accumulate([1.0, *(step if step > 0.4 else 0.0 for step in steps)]))
)
survivals = st.lists(
    st.lists(st.floats(0, 1), min_size=0, max_size=5).map(lambda chances: list(accumulate(chances, min))),
    min_size=1,
    max_size=3,
)


def rate(
    curve: Sequence[float], rows: int, survivals: Sequence[Sequence[float]], lengths: Sequence[int]
) -> float:
    expected = len(survivals) + sum(sum(chain[:n]) for chain, n in zip(survivals, lengths, strict=True))
    return expected / curve[rows + sum(lengths) - 1]


@given(curve=curves, survivals=survivals, owed=st.integers(0, 2))
@settings(deadline=None, max_examples=300)
def test_the_lengths_are_the_best_of_all(curve: list[float], survivals: list[list[float]], owed: int) -> None:
    """Brute force over every combination of lengths, on cost curves with arbitrary steps."""
    planner = taught(lambda rows: curve[min(rows, len(curve)) - 1])
    decoding = len(survivals)
    rows = decoding + owed
    lengths = planner._lengths(range(decoding), survivals, Load(decoding, 0, 1, owed))
    every = product(*(range(len(chain) + 1) for chain in survivals))
    best = max(rate(curve, rows, survivals, choice) for choice in every)
    plain = decoding / curve[rows - 1]
    if best > plain * MARGIN * (1 + 1e-9):
        assert rate(curve, rows, survivals, lengths) == pytest.approx(best)
    else:
        assert rate(curve, rows, survivals, lengths) == pytest.approx(plain) or best == pytest.approx(
            plain * MARGIN
        )


def stepped(rows: int) -> float:
    """Up to 4 rows cost what 2 cost, 5 to 8 half as much again, more a lot."""
    return 1.0 if rows == 1 else 1.1 if rows <= 4 else 1.65 if rows <= 8 else 6.0


def test_a_draft_ends_where_the_cost_has_a_step() -> None:
    game = Game(taught(stepped), stepped)
    draft = chain(12, match_length=6)
    played = game.play(300, [draft], lambda draft: min(len(draft), 3))
    lengths = {len(draft) for draft in played[-50:] if draft is not None}
    assert lengths == {3}, "a fourth would cost a step and has never been right"


def test_a_step_is_crossed_for_what_lies_behind_it() -> None:
    game = Game(taught(stepped), stepped)
    played = game.play(300, [chain(7, match_length=6)], all_right)
    assert {len(draft) for draft in played[-50:] if draft is not None} == {7}


def test_requests_share_the_forward_by_what_their_drafts_bring() -> None:
    planner = taught(stepped)
    good = Game(planner, stepped, RequestView(1, [0], prompt_length=1))
    bad = Game(planner, stepped, RequestView(2, [0], prompt_length=1))
    for _ in range(150):
        good.round([chain(6, "good")], all_right)
        bad.round([chain(6, "bad")], all_wrong)
    views = [bad.request, good.request]
    chosen = planner.choose(views, [[chain(6, "bad")], [chain(6, "good")]], Load(2, 0, 9))
    assert chosen[0] is None
    assert chosen[1] is not None
    assert len(chosen[1]) == 6


def test_at_high_concurrency_a_full_forward_has_no_room_for_drafts() -> None:
    """With as many requests as a step of the curve holds, one more row costs more than it can bring."""

    def cliff(rows: int) -> float:
        return 1.0 if rows <= 8 else 8.0

    planner = taught(cliff)
    game = Game(planner, cliff)
    game.play(100, [chain(4)], all_right)
    views = [RequestView(number, [0], prompt_length=1) for number in range(1, 9)]
    alone = planner.choose(views[:1], [[chain(4)]], Load(1, 0, 9))
    together = planner.choose(views, [[chain(4)]] * 8, Load(8, 0, 9))
    again = planner.choose(views[:1], [[chain(4)]], Load(1, 0, 9))
    assert all(alone)
    assert not any(together)
    assert all(again), "it comes back when the load falls"


def test_rows_of_prompts_count_as_rows() -> None:
    def cliff(rows: int) -> float:
        return 1.0 if rows <= 4 else 4.0

    planner = taught(cliff)
    Game(planner, cliff).play(100, [chain(3)], lambda _draft: 1)
    free = planner.choose([VIEW], [[chain(3)]], Load(1, 0, 9))
    full = planner.choose([VIEW], [[chain(3)]], Load(1, 3, 9))
    assert any(free)
    assert not any(full), "the prompt's rows have used up the cheap ones"


# --- several sources, sampled drafts, noise ------------------------------------------------------------


def test_the_better_source_is_chosen() -> None:
    game = Game(taught(CHEAP), CHEAP)
    drafts = [chain(6, "wrong"), chain(6, "right")]
    played = game.play(200, drafts, lambda draft: 6 * (draft.source == "right"))
    assert {draft.source for draft in played[-50:] if draft is not None} == {"right"}


def sampled_draft(length: int) -> Draft:
    return Draft(tuple(range(length)), "draft-model", probs=(np.full(length, 1 / length),) * length)


@pytest.mark.parametrize("curve", [CHEAP, STEEP, linear(3.0)], ids=["cheap", "steep", "linear"])
def test_a_sampled_draft_is_never_cut(curve: Curve) -> None:
    """Whether a token is verified must not depend on what was drawn (rules `rejection` and `block`)."""
    game = Game(taught(curve), curve)
    first, *others = game.play(30, [sampled_draft(8)], all_wrong)
    assert first is not None
    assert len(first) == FIRST_PROBE, "that was all it was asked for"
    for chosen in others:
        assert chosen is not None
        assert len(chosen) == 8


def test_a_sampled_draft_is_not_cut_at_a_step_of_the_curve() -> None:
    def cliff(rows: int) -> float:
        return 1.0 if rows <= 4 else 50.0

    [chosen] = taught(cliff).choose([VIEW], [[sampled_draft(8)]], LOAD)
    assert chosen is not None
    assert len(chosen) == 8


def test_sampled_drafts_of_many_requests_are_verified_together() -> None:
    views = [RequestView(number, [0], prompt_length=1) for number in (1, 2, 3)]
    drafts = [[sampled_draft(4)], [chain(4)], [sampled_draft(2)]]
    chosen = taught(CHEAP).choose(views, drafts, Load(3, 0, 5))
    assert [len(draft) if draft else 0 for draft in chosen][::2] == [4, 2]


def test_a_tenfold_stall_does_not_change_the_choice() -> None:
    game = Game(taught(CHEAP), CHEAP)
    game.play(100, [chain(8)], all_right)
    for rows in (1, 9, 9, 9):
        game.planner.observe(Round(LOAD, rows, {"s": 0.001}, 10 * PLAIN_MS * CHEAP(rows), 0.0, ()))
    assert all(draft and len(draft) == 8 for draft in game.play(10, [chain(8)], all_right))


CPU = linear(0.2)


def rate_of(game: Game, rounds: int, chance: float, rng: random.Random) -> float:
    """Tokens per plain round over that many rounds of drafts of 8, each token right with `chance`."""
    ms, tokens = game.ms, game.tokens

    def right(draft: Draft) -> int:
        return next((i for i in range(len(draft)) if draws[i] >= chance), len(draft))

    for _ in range(rounds):
        draws = [rng.random() for _ in range(8)]
        game.round([chain(8)], right)
    return PLAIN_MS * (game.tokens - tokens) / (game.ms - ms)


@pytest.mark.parametrize("chance", [0.7, 1.0])
@pytest.mark.parametrize("before", [3, 300])
@pytest.mark.parametrize("stall", [20, 300])
def test_a_stall_of_seconds_does_not_stop_drafting_for_minutes(
    chance: float, before: int, stall: int
) -> None:
    planner, rng = AdaptivePlanner(), random.Random(4)
    for rows in SIZES:
        planner.observe(Round(Load(1, 0, 0), rows, {}, PLAIN_MS * CPU(rows), 0.0, ()))
    untouched = rate_of(Game(taught(CPU), CPU), 1000, chance, random.Random(4))
    game = Game(planner, CPU)
    rate_of(game, before, chance, rng)
    game.curve = lambda rows: 10 * CPU(rows)
    rate_of(game, stall, chance, rng)
    game.curve = CPU
    rate_of(game, 50, chance, rng)
    assert rate_of(game, 600, chance, rng) > 0.93 * untouched


def test_rounds_that_carry_a_prompt_say_nothing_of_a_draft_s_cost() -> None:
    planner = taught(linear(0.5))
    for _ in range(20):
        planner.observe(Round(Load(1, 5, 0), 6, {}, PLAIN_MS, 0.0, ((1, Outcome(1, (5,))),)))
    assert planner._curve.ratio(6) == pytest.approx(3.5)
    assert planner._curve.single_ms == PLAIN_MS


def test_a_draft_is_charged_with_what_all_requests_lose() -> None:
    """With 8 requests a plain round costs 2.4 V(1): four useless rows make it a third longer, for each."""
    planner = taught(CPU)
    wrong = tuple((number, Outcome(1, (BONUS,), chain(4) if number == 1 else None)) for number in range(1, 9))
    planner.observe(Round(Load(8, 0, 9), 12, {}, PLAIN_MS * CPU(12), 0.0, wrong))
    stakes = planner._stakes._stakes
    extra = (CPU(12) - CPU(8)) / CPU(8)
    assert extra == pytest.approx(1 / 3)
    assert stakes[1] == pytest.approx(SHARE - 8 * extra)
    assert [stakes[number] for number in range(2, 9)] == pytest.approx([SHARE] * 7)


@pytest.mark.parametrize("cost", [INCOME / 2, 0.07])
def test_what_asking_spends_of_what_was_won_no_draft_may_lose(cost: float) -> None:
    planner = taught(CPU)
    planner._attention.tick([1], cost)
    won = 4 - (CPU(4) - CPU(1)) / CPU(1)
    credit = planner._attention._requests[1].credit
    planner.observe(
        Round(Load(1, 0, 9), 4, {}, PLAIN_MS * CPU(4), 0.0, ((1, Outcome(1, (5, 6, 7, 8), chain(3), 3)),))
    )
    earned = planner._attention._requests[1].credit - credit
    assert earned > 0.1
    spent = earned if cost > INCOME else 0.0
    assert planner._stakes._stakes[1] == pytest.approx(4 * SHARE + won - 1 - spent, abs=0.01)


def test_what_plain_decoding_costs_is_measured_now_and_then() -> None:
    game = Game(taught(CHEAP), CHEAP)
    played = game.play(10 * STALE, [chain(8, match_length=8)], all_right)
    assert 5 <= sum(chosen is None for chosen in played[STALE:]) <= 9


def test_beside_a_prompt_no_draft_is_longer_than_without() -> None:
    """Eight rows cost little more than one and a ninth a lot: what that is beside a prompt nobody knows."""
    planner = taught(lambda rows: 1.2 if 1 < rows < 9 else 1.0 if rows == 1 else 5.0 + rows)
    survival = [0.99**n for n in range(1, 64)]
    assert planner._lengths([1], [survival], Load(1, 0, 64)) == [7]
    assert planner._lengths([1], [survival], Load(1, 200, 64)) == [7]
    assert planner._lengths([1], [[0.01] * 7], Load(1, 200, 64)) == [0]


def test_a_tree_is_cut_in_its_own_order() -> None:
    """The third token is likelier than the second, whose place comes before it."""
    lengths = taught(CHEAP)._lengths([1], [[0.6, 0.1, 0.5, 0.05]], LOAD)
    assert lengths == [3]
