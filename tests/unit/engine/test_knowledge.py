"""What is learnt is kept from run to run, and nothing of texts where nothing may be remembered."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from foredraft.engine.knowledge import TRUSTED, Knowledge
from foredraft.planner import AutoPlanner
from foredraft.engine.profile_store import ProfileStore, key_of
from foredraft.protocols import RequestView
from foredraft.testing import FakeModel
from foredraft.types import Draft, Load
from planner_rounds import Game, all_right, chain, linear, teach

INFO = FakeModel().info


def experienced(rounds: int) -> AutoPlanner:
    planner = AutoPlanner()
    teach(planner, linear(0.1))
    Game(planner, linear(0.1)).play(rounds, [chain(4, match_length=5)], all_right)
    return planner


def first_chance(planner: AutoPlanner) -> float:
    """What it thinks of a draft it has seen nothing of in this run."""
    draft: Draft = chain(4, match_length=5)
    return planner._survival.conditional(draft)[0]


def test_a_new_engine_begins_where_the_last_one_ended(tmp_path: Path) -> None:
    before = experienced(TRUSTED + 1)
    Knowledge(ProfileStore(tmp_path), INFO, remember=True).keep(before)
    again = AutoPlanner()
    assert Knowledge(ProfileStore(tmp_path), INFO, remember=True).recall(again), "enough to begin with"
    assert first_chance(again) > first_chance(AutoPlanner())
    again._curve.add(1, 7.0)
    assert again.curve()[192][8] == pytest.approx(7.0 * 1.7)


def test_little_experience_is_used_and_measured_again(tmp_path: Path) -> None:
    Knowledge(ProfileStore(tmp_path), INFO, remember=True).keep(experienced(5))
    assert not Knowledge(ProfileStore(tmp_path), INFO, remember=True).recall(AutoPlanner())


def test_a_curve_from_a_busy_moment_is_learnt_anew(tmp_path: Path) -> None:
    """Such as V(4) = 4.4: beyond the prior nothing would be drafted, so nothing be measured, for good."""
    store = ProfileStore(tmp_path)
    Knowledge(store, INFO, remember=True).keep(experienced(TRUSTED + 1))
    stored = store.load(key_of(INFO))
    assert stored is not None
    busy = {1: 5.0, 2: 8.9, 4: 22.0, 8: 58.7}
    store.save(replace(stored, curve={**stored.curve, 576: busy}))
    planner = AutoPlanner()
    assert Knowledge(store, INFO, remember=True).recall(planner), "the others are as they were"
    assert 576 not in planner.curve()
    store.save(replace(stored, curve={192: busy, 576: busy}))
    planner = AutoPlanner()
    assert not Knowledge(store, INFO, remember=True).recall(planner), "so it is measured"
    assert first_chance(planner) > first_chance(AutoPlanner()), "what was accepted is known"
    steep = {1: 10.0, 2: 17.5, 4: 26.0, 8: 50.0, 16: 86.0}
    store.save(replace(stored, curve={192: steep}))
    assert Knowledge(store, INFO, remember=True).recall(AutoPlanner()), "as some processors are"
    store.save(replace(stored, curve={192: {1: 59.9}}))
    assert not Knowledge(store, INFO, remember=True).recall(AutoPlanner()), "nothing but V(1)"
    store.save(replace(stored, curve={192: busy}, thorough=True))
    assert Knowledge(store, INFO, remember=True).recall(AutoPlanner()), "measured on purpose"


def test_what_was_measured_on_purpose_is_enough_at_once(tmp_path: Path) -> None:
    """As `foredraft profile` stores it, in some 200 forwards."""
    store = ProfileStore(tmp_path)
    Knowledge(store, INFO, remember=True).keep(experienced(5))
    stored = store.load(key_of(INFO))
    assert stored is not None
    store.save(replace(stored, thorough=True))
    knowledge, planner = Knowledge(store, INFO, remember=True), experienced(5)
    assert knowledge.recall(planner)
    knowledge.keep(planner)
    assert Knowledge(store, INFO, remember=True).recall(AutoPlanner()), "and stays so"


def test_rounds_add_up(tmp_path: Path) -> None:
    store = ProfileStore(tmp_path)
    for _ in range(2):
        knowledge = Knowledge(store, INFO, remember=True)
        planner = experienced(30)
        knowledge.recall(planner)
        knowledge.keep(planner)
    profile = store.load(key_of(INFO))
    assert profile is not None
    assert profile.rounds == 2 * experienced(30).rounds >= 60


def test_without_remembering_costs_are_kept_and_counts_are_not(tmp_path: Path) -> None:
    store = ProfileStore(tmp_path)
    Knowledge(store, INFO, remember=False).keep(experienced(TRUSTED + 1))
    profile = store.load(key_of(INFO))
    assert profile is not None
    assert profile.curve
    assert profile.learnt == {}
    Knowledge(store, INFO, remember=True).keep(experienced(40))
    fresh = AutoPlanner()
    Knowledge(store, INFO, remember=False).recall(fresh)
    assert first_chance(fresh) == first_chance(AutoPlanner()), "nor are they read"


def test_what_asking_takes_is_kept(tmp_path: Path) -> None:
    """So that the first question of the next run has its price."""
    before, load = experienced(40), Load(1, 0, 100)
    Knowledge(ProfileStore(tmp_path), INFO, remember=False).keep(before)
    profile = ProfileStore(tmp_path).load(key_of(INFO))
    assert profile is not None
    assert profile.draft_ms == pytest.approx(before.asking_ms)
    assert profile.overhead_ms == pytest.approx(before.choosing_ms)
    again = AutoPlanner()
    Knowledge(ProfileStore(tmp_path), INFO, remember=False).recall(again)
    teach(again, linear(0.1))
    names = list(before.asking_ms)
    price = before._question.cost(names, load)
    assert 0.0 < again._question.cost(names, load) == pytest.approx(price, rel=0.1)
    assert again._asking.asleep(names), "it need not be found out that these cost next to nothing"
    nobody = AutoPlanner()
    teach(nobody, linear(0.1))
    assert not nobody._asking.asleep(names)


def test_what_asking_took_stays_known_where_nobody_was_asked(tmp_path: Path) -> None:
    store = ProfileStore(tmp_path)
    Knowledge(store, INFO, remember=True).keep(experienced(40))
    before = store.load(key_of(INFO))
    knowledge, planner = Knowledge(store, INFO, remember=True), AutoPlanner()
    knowledge.recall(planner)
    teach(planner, linear(0.1))
    knowledge.keep(planner)
    after = store.load(key_of(INFO))
    assert before is not None
    assert after is not None
    assert before.draft_ms
    assert after.draft_ms == before.draft_ms
    assert after.overhead_ms == before.overhead_ms


def test_nothing_is_written_where_nothing_was_learnt(tmp_path: Path) -> None:
    Knowledge(ProfileStore(tmp_path), INFO, remember=True).keep(AutoPlanner())
    assert list(tmp_path.iterdir()) == []


def test_counts_that_are_damaged_are_left_out() -> None:
    planner = AutoPlanner()
    planner.recall(
        {192: {1: 5.0}}, {"survival": {"s|3|4": [1, "x"], "nonsense": [1, 2], "s|1|2": [-5, 9], "t|1|1": 3}}
    )
    assert first_chance(planner) == first_chance(AutoPlanner())
    planner.recall({}, {"survival": [1, 2]})


def test_how_long_answers_are_is_kept(tmp_path: Path) -> None:
    before = experienced(40)
    long = RequestView(7, [0] * 301, prompt_length=1)
    before.start(long)
    before.stop(long)
    Knowledge(ProfileStore(tmp_path), INFO, remember=True).keep(before)
    again = AutoPlanner()
    Knowledge(ProfileStore(tmp_path), INFO, remember=True).recall(again)
    assert again.knowledge()["answers"] == [300]
    again.recall({}, {"answers": "300"})
    again.recall({}, {"answers": 300})
    assert again.knowledge()["answers"] == [300]
