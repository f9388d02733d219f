"""What a planner that decides by cost is told: measured once, in a sequence that is free again afterwards."""

from __future__ import annotations

from itertools import count
from pathlib import Path

from foredraft.engine.knowledge import TRUSTED, Knowledge
from foredraft.engine.prefix.cache import PrefixCache
from foredraft.engine.teaching import Teaching
from foredraft.planner import AutoPlanner
from foredraft.engine.profile_store import ProfileStore
from foredraft.testing import FakeModel
from planner_rounds import Game, all_right, chain, linear, teach


def teaching_of(model: FakeModel) -> Teaching:
    ticks = count()
    return Teaching(model, PrefixCache(model), lambda: next(ticks) * 1e-3)


def test_forwards_are_measured_once_for_all_planners() -> None:
    model = FakeModel(sequences=2)
    teaching = teaching_of(model)
    first, second = AutoPlanner(), AutoPlanner()
    teaching.teach(first)
    measured = len(model.forwards)
    assert measured > 3
    assert first.curve()
    teaching.teach(second)
    assert len(model.forwards) == measured
    assert second.curve() == first.curve()
    assert [model.length(seq) for seq in range(2)] == [0, 0]


def experienced() -> AutoPlanner:
    planner = AutoPlanner()
    teach(planner, linear(0.1))
    Game(planner, linear(0.1)).play(TRUSTED + 1, [chain(4, match_length=5)], all_right)
    return planner


def test_what_one_has_learnt_is_told_to_the_next_and_less_is_measured(tmp_path: Path) -> None:
    model, unknown = FakeModel(), FakeModel()
    teaching = teaching_of(model)
    teaching.knowledge = Knowledge(ProfileStore(tmp_path), model.info, remember=True)
    teaching.keep(experienced())
    teaching.teach(AutoPlanner())
    teaching_of(unknown).teach(AutoPlanner())
    assert len(model.forwards) < len(unknown.forwards)


def test_without_a_store_or_a_planner_that_learns_nothing_is_kept(tmp_path: Path) -> None:
    model = FakeModel()
    teaching = teaching_of(model)
    teaching.keep(experienced())
    teaching.knowledge = Knowledge(ProfileStore(tmp_path), model.info, remember=True)
    teaching.keep(None)
    assert not list(tmp_path.iterdir())
    teaching.keep(experienced())
    assert list(tmp_path.iterdir())
