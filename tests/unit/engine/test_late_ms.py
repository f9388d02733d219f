"""What a round takes after its tokens were committed reaches the planner with the next one."""

from __future__ import annotations

import pytest

from foretoken import Engine
from foretoken.planner.fixed import FixedPlanner
from foretoken.testing import FakeModel, ScriptedDrafter
from foretoken.types import Round
from planner_doubles import PlannerAround


def test_learning_from_a_round_is_told_with_the_next() -> None:
    now = [0.0]
    told: list[float] = []

    class Slow(PlannerAround):
        def observe(self, measured: Round) -> None:
            told.append(measured.late_ms)
            now[0] += 0.25

    drafter = ScriptedDrafter(lambda _: ())
    planner = Slow(FixedPlanner())
    engine = Engine(FakeModel(), drafters=[drafter], planner=planner, clock=lambda: now[0])
    engine.generate([1, 2, 3], max_tokens=4, ignore_eos=True)
    assert told == [0.0, *[pytest.approx(250)] * (len(told) - 1)]
    assert len(told) == 3
