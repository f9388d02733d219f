"""The planner's median is that of the standard library."""

from __future__ import annotations

import statistics
from collections import deque

from hypothesis import given
from hypothesis import strategies as st

from foretoken.planner.tables.window import median


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=20))
def test_it_is_the_standard_library_s(values: list[float]) -> None:
    assert median(values) == statistics.median(values)
    assert median(deque(values)) == statistics.median(values)
