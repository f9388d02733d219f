"""Figures that are merged, written and read again."""

from __future__ import annotations

import random

import pytest

from foredraft.server.console.figures import MOST_DRAFTERS, OTHERS, Figures, Spans


def exact_ms(times: list[float], share: float) -> float:
    ordered = sorted(times)
    return 1e3 * ordered[max(0, -(-int(share * 1000 * len(ordered)) // 1000) - 1)]


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("share", [0.5, 0.99])
def test_percentiles_are_near_the_exact_ones(seed: int, share: float) -> None:
    rng = random.Random(seed)
    times = [rng.lognormvariate(-4, 1.5) for _ in range(5000)]
    spans = Spans()
    for seconds in times:
        spans.add(seconds)
    assert spans.percentile_ms(share) == pytest.approx(exact_ms(times, share), rel=0.045)


def test_merged_histograms_are_the_histogram_of_all() -> None:
    one, two, both = Spans(), Spans(), Spans()
    for number in range(1, 200):
        (one if number % 3 else two).add(number / 1000, number)
        both.add(number / 1000, number)
    one.merge(two)
    assert one.counts == both.counts


def test_no_times_have_no_percentile_and_odd_ones_count() -> None:
    spans = Spans()
    assert spans.percentile_ms(0.5) is None
    for seconds in (0.0, -1.0, 1e9):
        spans.add(seconds)
    assert sum(spans.counts.values()) == 3
    assert len(spans.counts) == 2


def figures(seed: int) -> Figures:
    rng = random.Random(seed)
    made = Figures(
        seconds=rng.random() * 30,
        requests=rng.randrange(9),
        generated=rng.randrange(900),
        spent_ms=rng.random() * 1e4,
        plain_ms=rng.random() * 1e4,
        cpu=rng.random(),
        cpu_s=1.0,
        running=rng.randrange(5),
        memory=rng.randrange(1 << 34),
    )
    made.first.add(rng.random(), 3)
    made.gaps.add(rng.random() / 50, 40)
    made.drafted("suffix", [rng.randrange(9), 8, 7, rng.random()])
    made.drafted(f"other-{seed}", [1, 2, 3, 4.5])
    made.accepted([rng.randrange(9) for _ in range(rng.randrange(1, 9))])
    return made


def test_merging_adds_counts_and_keeps_the_most() -> None:
    one, two = figures(1), figures(2)
    whole = Figures()
    whole.merge(one)
    whole.merge(two)
    assert whole.generated == one.generated + two.generated
    assert whole.running == max(one.running, two.running)
    assert whole.drafters["suffix"][1:3] == [16, 14]
    assert len(whole.depth) == max(len(one.depth), len(two.depth))
    assert sum(whole.depth) == sum(one.depth) + sum(two.depth)
    assert one.text() == figures(1).text(), "what is merged stays as it was"


@pytest.mark.parametrize("seed", range(5))
def test_what_is_written_is_read_again(seed: int) -> None:
    text = figures(seed).text()
    assert Figures.of(text).text() == text
    assert Figures().text() == "{}"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "7",
        '{"requests":"x"}',
        '{"gaps":[1]}',
        '{"drafters":{"a":1}}',
        '{"depth":7}',
        '{"drafters":{"a":[1]}}',
    ],
)
def test_what_is_no_figures_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not figures"):
        Figures.of(text)


def test_names_of_drafters_are_bounded() -> None:
    made = Figures()
    for number in range(1000):
        made.drafted(f"drafter-{number}", [1, 1, 1, 1.0])
    assert len(made.drafters) == MOST_DRAFTERS + 1
    assert made.drafters[OTHERS][0] == 1000 - MOST_DRAFTERS
