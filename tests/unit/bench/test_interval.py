"""How sure a speedup is."""

from __future__ import annotations

import random
from math import exp
from statistics import geometric_mean

import pytest

from foredraft.bench.interval import FEWEST, confidence, student


@pytest.mark.parametrize(
    ("freedom", "value"), [(3, 3.182), (4, 2.776), (7, 2.365), (11, 2.201), (30, 2.042), (1000, 1.962)]
)
def test_quantiles_are_those_of_the_tables(freedom: int, value: float) -> None:
    assert student(0.95, freedom) == pytest.approx(value, rel=0.01)


def test_few_prompts_have_no_interval() -> None:
    assert confidence([1.5] * (FEWEST - 1)) is None
    low, high = confidence([1.5] * FEWEST) or (0, 0)
    assert low == pytest.approx(1.5) == pytest.approx(high)


def test_it_holds_the_true_speedup_about_as_often_as_it_says() -> None:
    chance, held = random.Random(1), 0
    for _ in range(2000):
        speedups = [exp(chance.gauss(0.2, 0.3)) for _ in range(8)]
        low, high = confidence(speedups) or (0, 0)
        assert low < geometric_mean(speedups) < high
        held += low < exp(0.2) < high
    assert 0.935 < held / 2000 < 0.965
