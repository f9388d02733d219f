"""V(1) now: by forwards of all sizes; what others are compared with: by plain ones of the same time."""

from __future__ import annotations

import pytest

from foredraft.planner.pace import NEAR, STALE, Pace


def test_nothing_is_known_before_a_plain_forward() -> None:
    pace = Pace()
    pace.drafted(10.0)
    assert (pace.known, pace.ms, pace.near(0), pace.stale(10**6)) == (False, 0.0, None, False)


def test_forwards_of_every_size_say_how_fast_it_is() -> None:
    pace = Pace()
    pace.plain(10.0, 0)
    for _ in range(20):
        pace.drafted(30.0)
    assert pace.ms == pytest.approx(30.0)


def test_only_plain_forwards_of_the_same_time_are_compared_with() -> None:
    pace = Pace()
    pace.plain(10.0, 0)
    pace.plain(20.0, 1)
    assert pace.near(NEAR) == pytest.approx(15.0)
    assert pace.near(1 + NEAR) == pytest.approx(20.0)
    assert pace.near(2 + NEAR) is None
    assert not pace.stale(STALE)
    assert pace.stale(STALE + 1)
