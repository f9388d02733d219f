"""What an open page costs and holds: the order of the turns, and the figures that come of them."""

from __future__ import annotations

from collections import Counter

import pytest

from foredraft.bench.workloads import PromptCase
from page_cost import NONE, Turn, as_table, groups, pairs, summary, wrong
from page_memory import growth
from server_client import Answer

CASES = [PromptCase(f"p{number}", "chat", ("Hello?",)) for number in range(9)]
VIEWS = [NONE, "overview", "requests"]


def turn(rate: float, text: str = "x", error: str = "") -> Turn:
    return Turn([Answer(0.0, text=text, tokens=4, error=error)], rate)


def test_a_rest_is_left_out_unless_it_is_all_there_is() -> None:
    assert [len(group) for group in groups(CASES, 4)] == [4, 4]
    assert [len(group) for group in groups(CASES[:3], 4)] == [3]


def test_every_view_meets_every_group_and_is_first_as_often_as_last() -> None:
    found = groups(CASES, 4)
    planned = list(pairs(VIEWS, found, repeat=4, seed=1))
    assert Counter((view, group[0].id) for view, group, _ in planned) == {
        (view, group[0].id): 4 for view in VIEWS for group in found
    }
    for view in VIEWS:
        firsts = [open_first for name, _, open_first in planned if name == view]
        assert sum(firsts) * 2 == len(firsts)
    orders = {tuple(view for view, _, _ in planned[at : at + 3]) for at in range(0, len(planned), 3)}
    assert len(orders) > 1, "in several orders"


def test_a_ratio_has_its_spread() -> None:
    found = summary([(turn(98.0), turn(100.0)), (turn(49.0), turn(50.0)), (turn(99.0), turn(99.0))])
    assert found["ratio"] == pytest.approx((0.98 * 0.98) ** (1 / 3))
    assert (found["lowest"], found["highest"], found["low"]) == (0.98, 1.0, None), "too few for an interval"
    assert "| overview | 3 |" in as_table({"overview": found})
    assert "| – |" in as_table({"overview": found})


def test_other_texts_and_failed_requests_are_told() -> None:
    assert wrong({"log": [(turn(1.0), turn(1.0))]}) == []
    assert wrong({"log": [(turn(1.0, "a"), turn(1.0, "b"))]}) == ["log: a text differs"]
    assert wrong({"log": [(turn(1.0, error="503"), turn(1.0))]}) == ["log: 503"]


def test_growth_is_told_from_the_second_visit_on() -> None:
    seen = [(view, {"nodes": float(10 * number)}) for number in range(3) for view in ("overview", "log")]
    assert growth(seen) == {"overview": {"nodes": 10.0}, "log": {"nodes": 10.0}}
    assert growth(seen[:4]) == {}
