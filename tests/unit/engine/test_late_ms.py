"""What a round takes after its tokens were committed reaches the planner with the next one."""

from __future__ import annotations

import pytest

from foredraft import Engine
from foredraft.planner import StaticPlanner
from foredraft.testing import FakeModel, ScriptedDrafter
from planner_doubles import SlowToLearn


def test_learning_from_a_round_is_told_with_the_next() -> None:
    now = [0.0]
    drafter = ScriptedDrafter(lambda _: ())
    planner = SlowToLearn(StaticPlanner(), now)
    engine = Engine(FakeModel(), drafters=[drafter], planner=planner, clock=lambda: now[0])
    engine.generate([1, 2, 3], max_tokens=4, ignore_eos=True)
    assert planner.late_ms == [0.0, *[pytest.approx(250)] * 2]
