"""What is learnt is kept from run to run, and nothing of texts where nothing may be remembered."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from foredraft.engine.prefix.cache import PrefixCache
from foredraft.engine.profile_store import Profile, ProfileStore, files, key_of
from foredraft.engine.speculation import TRUSTED_ROUNDS, PlannerStore, WarmUp
from foredraft.planner import AutoPlanner, StaticPlanner
from foredraft.testing import FakeModel
from foredraft.types import Load, Outcome, Round
from planner_doubles import auto_planner
from planner_rounds import Game, all_right, chain, linear, teach

INFO = FakeModel().info
DRAFT = chain(4, match_length=5)


def experienced(rounds: int) -> AutoPlanner:
    planner = auto_planner()
    teach(planner, linear(0.1))
    Game(planner, linear(0.1)).play(rounds, [DRAFT], all_right)
    return planner


def store_of(folder: Path, *, remember: bool = True) -> PlannerStore:
    return PlannerStore(ProfileStore(folder), INFO, remember=remember)


def first_probability(planner: AutoPlanner) -> float:
    """That of a draft it has seen nothing of in this run."""
    return planner.acceptance_of(0).survivals(9, [DRAFT], 0)[0][0]


def test_a_new_engine_begins_where_the_last_one_ended(tmp_path: Path) -> None:
    store_of(tmp_path).save(experienced(TRUSTED_ROUNDS + 1))
    again = auto_planner()
    assert store_of(tmp_path).load(again), "enough to begin with"
    assert first_probability(again) > first_probability(auto_planner())
    again.cost.focus(Load(1, 0, 100))
    assert again.cost.costs(8)[7] == pytest.approx(1.7)


def test_little_experience_is_used_and_measured_again(tmp_path: Path) -> None:
    store_of(tmp_path).save(experienced(5))
    again = auto_planner()
    assert not store_of(tmp_path).load(again)
    assert first_probability(again) > first_probability(auto_planner())


def test_costs_with_fewer_threads_do_not_replace_those_with_all(tmp_path: Path) -> None:
    store_of(tmp_path).save(experienced(5))
    [path] = files(tmp_path)
    before = json.loads(path.read_text())
    store, planner = store_of(tmp_path), auto_planner()
    store.load(planner)
    load = Load(1, 0, 0, idle_threads=1)
    for kept in range(20):
        planner.cost.learn(Round(load, 1, {}, 99.0, 0.0, ((0, Outcome(kept, (5,), None, 0)),)))
    store.save(planner)
    after = json.loads(path.read_text())
    assert after["rounds"] == before["rounds"] + 20
    assert after["curve"] == before["curve"]


def test_what_was_measured_on_purpose_is_enough_at_once(tmp_path: Path) -> None:
    """As `foredraft profile` stores it, in some 200 forwards."""
    store = ProfileStore(tmp_path)
    store_of(tmp_path).save(experienced(5))
    stored = store.load(key_of(INFO))
    assert stored is not None
    store.save(replace(stored, thorough=True))
    planners, planner = store_of(tmp_path), experienced(5)
    assert planners.load(planner)
    planners.save(planner)
    assert store_of(tmp_path).load(auto_planner()), "and stays so"


def test_a_curve_of_plain_rounds_alone_is_measured(tmp_path: Path) -> None:
    store = ProfileStore(tmp_path)
    store_of(tmp_path).save(experienced(TRUSTED_ROUNDS + 1))
    stored = store.load(key_of(INFO))
    assert stored is not None
    store.save(replace(stored, curve={192: {1: 59.9}}))
    assert not store_of(tmp_path).load(auto_planner())


def test_a_stored_curve_from_a_busy_moment_gives_way_to_measurements(tmp_path: Path) -> None:
    """Such as V(4) = 4.4: no draft of four tokens would ever pay, so none be measured, for good."""
    store = ProfileStore(tmp_path)
    busy = {1: 5.0, 2: 8.9, 4: 22.0, 8: 58.7}
    store.save(
        Profile(key=key_of(INFO), curve={192: busy}, measured_at=datetime.now(UTC), rounds=TRUSTED_ROUNDS)
    )
    planner = auto_planner()
    store_of(tmp_path).load(planner)
    planner.cost.focus(Load(1, 0, 100))
    assert planner.cost.costs(4)[3] < 4.4, "a stored value counts only where it is cheap"
    for _ in range(5):
        teach(planner, linear(0.1), most=8)
    planner.state()  # rounds without an attempt may be learnt from later
    assert planner.cost.costs(4)[3] == pytest.approx(1.3)


def test_rounds_add_up(tmp_path: Path) -> None:
    for _ in range(2):
        planners, planner = store_of(tmp_path), experienced(30)
        planners.load(planner)
        planners.save(planner)
    profile = ProfileStore(tmp_path).load(key_of(INFO))
    assert profile is not None
    planner = experienced(30)
    planner.state()
    assert profile.rounds == 2 * planner.cost.rounds == 60


def test_without_remembering_costs_are_kept_and_what_texts_taught_is_not(tmp_path: Path) -> None:
    store_of(tmp_path, remember=False).save(experienced(TRUSTED_ROUNDS + 1))
    profile = ProfileStore(tmp_path).load(key_of(INFO))
    assert profile is not None
    assert profile.curve
    assert profile.learnt == {}
    store_of(tmp_path).save(experienced(40))
    fresh = auto_planner()
    store_of(tmp_path, remember=False).load(fresh)
    assert first_probability(fresh) == first_probability(auto_planner()), "nor is it read"


def test_nothing_is_written_where_nothing_was_learnt(tmp_path: Path) -> None:
    store_of(tmp_path).save(auto_planner())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "damaged",
    [
        {"acceptance": {"counts": {"s|3|4": [1, "x"], "nonsense": [1, 2], "t|1|1": 3}, "weights": 7}},
        {"acceptance": [1, 2], "drafters": 3, "attempt_ms": "long"},
        {"acceptance": {"mixes": {"s": [1, 2, 3], "s|1": [1, 2]}, "weights": {"x": 1, "-1": 2}}},
        {"survival": {"s|3|4": [9, 0]}},
    ],
)
def test_entries_that_are_damaged_are_left_out(damaged: Mapping[str, Any]) -> None:
    planner = auto_planner()
    planner.load_state(damaged)
    assert first_probability(planner) == first_probability(auto_planner())
    assert planner.state() == auto_planner().state()


def test_state_of_another_version_is_ignored_with_one_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store_of(tmp_path).save(experienced(TRUSTED_ROUNDS + 1))
    [path] = files(tmp_path)
    path.write_text(json.dumps({**json.loads(path.read_text()), "version": 3}))
    planner = auto_planner()
    with caplog.at_level(logging.WARNING):
        assert not store_of(tmp_path).load(planner)
    [record] = caplog.records
    assert "has version 3" in record.message
    assert first_probability(planner) == first_probability(auto_planner())
    assert not planner.cost.known


# --- warm-up -------------------------------------------------------------------------------------------


def warm_up_of(model: FakeModel) -> WarmUp:
    ticks = count()
    return WarmUp(model, PrefixCache(model), lambda: next(ticks) * 1e-3)


def test_forwards_are_measured_once_for_all_planners() -> None:
    model = FakeModel(sequences=2)
    warm_up = warm_up_of(model)
    first, second = auto_planner(), auto_planner()
    warm_up.begin(first)
    measured = len(model.forwards)
    assert measured > 3
    assert first.cost.known
    warm_up.begin(second)
    assert len(model.forwards) == measured
    assert second.cost.state() == first.cost.state()
    assert [model.length(seq) for seq in range(2)] == [0, 0]


def test_a_planner_that_goes_by_no_costs_needs_no_forwards() -> None:
    model = FakeModel()
    warm_up_of(model).begin(StaticPlanner())
    assert model.forwards == []


def test_less_is_measured_where_a_profile_is_stored(tmp_path: Path) -> None:
    model, unknown = FakeModel(), FakeModel()
    warm_up = warm_up_of(model)
    warm_up.store = store_of(tmp_path)
    warm_up.end(experienced(TRUSTED_ROUNDS + 1))
    warm_up.begin(auto_planner())
    warm_up_of(unknown).begin(auto_planner())
    assert len(model.forwards) < len(unknown.forwards)


def test_without_a_store_or_a_planner_that_learns_nothing_is_kept(tmp_path: Path) -> None:
    warm_up = warm_up_of(FakeModel())
    warm_up.end(experienced(40))
    warm_up.store = store_of(tmp_path)
    warm_up.end(StaticPlanner())
    assert not list(tmp_path.iterdir())
    warm_up.end(experienced(40))
    assert list(tmp_path.iterdir())
