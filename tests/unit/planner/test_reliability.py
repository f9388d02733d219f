"""Reliability of chances: what was said against what happened."""

from __future__ import annotations

import pytest

from foredraft.planner.tables.calibration import Survival
from foredraft.planner.tables.reliability import ReliabilityTable
from foredraft.types import Draft, Outcome


def test_nothing_is_claimed_before_anything_was_scored() -> None:
    table = ReliabilityTable()
    assert table.error is None
    assert table.bins() == []


def test_chances_that_come_true_have_no_error_and_others_their_distance() -> None:
    good, bad = ReliabilityTable(), ReliabilityTable()
    for i in range(100):
        good.add(0.75, i % 4 != 0)
        bad.add(0.75, i % 4 == 0)
    assert good.error == pytest.approx(0.0)
    assert bad.error == pytest.approx(0.5)
    assert [(found.predicted, found.observed, found.count) for found in bad.bins()] == [(0.75, 0.25, 100)]
    certain = ReliabilityTable()
    certain.add(1.0, right=True)
    assert certain.error == 0.0


def test_every_scored_token_counts_with_the_chance_it_had_before() -> None:
    survival = Survival()
    draft = Draft((1, 2, 3), "suffix", confidence=(0.9, 0.9, 0.9), features={"match_length": 5.0})
    survival.remember(1, [draft])
    chance = survival.conditional(draft)[0]
    survival.score(1, Outcome(0, (1, 9)))
    bins = survival.reliability.bins()
    assert sum(found.count for found in bins) == 2, "the first was right, the second wrong, the third unseen"
    assert bins[0].predicted == pytest.approx(chance, abs=0.05)
    assert bins[0].observed == 0.5
