"""Random cases for as long as there is time."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st


def until_it_is_over(seconds: float, case: st.SearchStrategy[Any], check: Callable[[Any, int], None]) -> int:
    """Check random cases as long as there is time; how many there were."""
    end = time.monotonic() + seconds
    seen = [0]
    round_ = 0
    while time.monotonic() < end:
        round_ += 1

        @seed(round_)
        @settings(
            max_examples=100,
            deadline=None,
            database=None,
            phases=(Phase.generate, Phase.shrink),
            suppress_health_check=list(HealthCheck),
        )
        @given(case, st.integers(0, 1000))
        def one(value: Any, number: int) -> None:
            if time.monotonic() < end:
                seen[0] += 1
                check(value, number)

        one()
    return seen[0]
