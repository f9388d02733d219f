"""What asking may take: always the same for a request alone, in company as much as it has saved."""

from __future__ import annotations

import pytest

from foredraft.planner.income import INCOME, LEAST, WINDOW, Income


def test_a_request_alone_earns_the_same_whatever_asking_brought() -> None:
    income = Income()
    income.spent(1, 100.0)
    income.saved(1, -5.0)
    assert income.of(1) == INCOME


def test_in_company_it_falls_where_asking_brings_nothing_and_no_further_than_a_quarter() -> None:
    income = Income()
    assert income.of(8) == INCOME
    seen = []
    for _ in range(40):
        income.spent(8, 0.5)
        seen.append(income.of(8))
    assert seen == sorted(seen, reverse=True)
    assert seen[0] < INCOME
    assert seen[-1] == pytest.approx(LEAST * INCOME)


def test_it_stays_where_drafts_save_what_asking_takes() -> None:
    income = Income()
    for _ in range(1000):
        income.spent(4, 0.5)
        income.saved(4, 0.6)
    assert income.of(4) == INCOME


def test_drafts_that_lose_count_against_it() -> None:
    income, other = Income(), Income()
    for which in (income, other):
        which.spent(4, 1.0)
    income.saved(4, -1.0)
    assert income.of(4) < other.of(4)


def test_it_comes_back_when_drafts_begin_to_pay_however_long_they_did_not() -> None:
    income = Income()
    for _ in range(10_000):
        income.spent(4, 1.0)
    drafts = 0
    while income.of(4) < INCOME:
        income.saved(4, 2.0)
        drafts += 1
    assert drafts <= 1 + WINDOW / 2.0


def test_more_and_fewer_requests_are_told_apart() -> None:
    income = Income()
    income.spent(8, 10.0)
    assert income.of(15) == income.of(8) < INCOME
    assert income.of(7) == income.of(16) == INCOME
