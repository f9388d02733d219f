"""What the quick run leaves out of a product of parameters."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import pytest

from matrix import cover


@pytest.mark.parametrize("strength", [1, 2, 3])
@pytest.mark.parametrize("sizes", [[3], [1, 1], [4, 2], [9, 2, 5, 2], [5, 2, 2, 2], [6, 6, 3]])
def test_every_combination_of_values_is_there_and_few_rows_are(sizes: Sequence[int], strength: int) -> None:
    rows = cover(sizes, strength)
    assert len(set(rows)) == len(rows)
    for columns in itertools.combinations(range(len(sizes)), min(strength, len(sizes))):
        found = {tuple(row[column] for column in columns) for row in rows}
        assert found == set(itertools.product(*(range(sizes[column]) for column in columns)))
    assert len(rows) <= 1.5 * math.prod(sorted(sizes)[-strength:])


def test_the_values_of_two_parameters_meet() -> None:
    assert cover([3, 2]) == list(itertools.product(range(3), range(2)))


def test_every_value_once_takes_as_many_rows_as_the_longest_parameter() -> None:
    assert len(cover([3, 7, 2], strength=1)) == 7
