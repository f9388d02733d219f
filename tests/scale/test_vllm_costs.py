"""What the proposer for vLLM makes of the time between two calls: a forward takes what a curve says."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import pytest

from foredraft.config import Stage
from foredraft.protocols import Drafter, DrafterContext, RequestView
from foredraft.registry import create_drafter
from foredraft.scale import vllm
from foredraft.scale.vllm import Proposer
from foredraft.types import Draft, DraftLimit
from vllm_runner import Runner, config

TOKENS = 300
Curve = Callable[[int], float]


class Clock:
    """Virtual seconds."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def repeating(text: Sequence[int]) -> int:
    """The same forty tokens again and again."""
    return (len(text) * 7) % 40


def doubtful(text: Sequence[int]) -> int:
    """The same, but seven tokens of ten are any."""
    surprise = random.Random(1000 * len(text) + text[0])
    return repeating(text) if surprise.random() < 0.3 else surprise.randrange(40)


def seconds(
    curve: Curve,
    requests: int,
    next_token: Callable[[Sequence[int]], int],
    speculate: str,
    clock: Clock | None = None,
) -> tuple[float, Proposer]:
    """The time that requests take which decode together; a forward takes 10 ms × the curve."""
    settings = config(context=2 * TOKENS, speculate=speculate)
    settings.scheduler_config.max_num_seqs = requests
    settings.scheduler_config.max_num_batched_tokens = 2048
    clock = clock or Clock()
    proposer = Proposer(settings, clock=clock)
    runner = Runner(settings, proposer, next_token)
    for name in range(requests):
        runner.add(name, [name % 40, 1, 2, 3], TOKENS)
    while runner.waiting or runner.running:
        rows = sum(1 + len(it.drafts) for it in runner.running) or requests
        clock.now += 0.01 * curve(rows)
        runner.step()
    return clock.now, proposer


def flat(rows: int) -> float:
    """As on a GPU."""
    return 1.0 + 0.003 * rows


def steep(rows: int) -> float:
    """Nothing is gained by computing rows together."""
    return float(rows)


@pytest.mark.parametrize("requests", [1, 8, 32])
def test_it_finds_out_that_drafts_are_cheap(requests: int) -> None:
    plain, _ = seconds(flat, requests, repeating, "off")
    drafted, proposer = seconds(flat, requests, repeating, "auto")
    assert plain / drafted > 2.5, proposer.statistics()


@pytest.mark.parametrize("requests", [1, 4])
@pytest.mark.parametrize("next_token", [repeating, doubtful])
def test_it_loses_no_more_than_it_may(requests: int, next_token: Callable[[Sequence[int]], int]) -> None:
    plain, _ = seconds(steep, requests, next_token, "off")
    drafted, proposer = seconds(steep, requests, next_token, "auto")
    assert drafted < 1.03 * plain + 0.5 * 0.01 * requests, proposer.statistics()


class Slow:
    """A drafter that takes `ms` for each request, on the clock."""

    def __init__(self, drafter: Drafter, clock: Clock, ms: float) -> None:
        self.name, self.start, self.observe = drafter.name, drafter.start, drafter.observe
        self.stop, self.close = drafter.stop, drafter.close
        self.spent: list[float] = []
        """Seconds of each call."""
        self._drafter, self._clock, self._ms = drafter, clock, ms

    def draft(self, requests: Sequence[tuple[RequestView, DraftLimit]]) -> list[Draft | None]:
        self.spent.append(len(requests) * self._ms / 1e3)
        self._clock.now += self.spent[-1]
        return list(self._drafter.draft(requests))


def slow_seconds(
    monkeypatch: pytest.MonkeyPatch, ms: float, requests: int
) -> tuple[float, list[list[float]]]:
    """`seconds` with `auto`, whose drafters take `ms` for each request; and what the calls of each took."""
    clock, made = Clock(), list[Slow]()

    def create(stage: Stage, context: DrafterContext) -> Drafter:
        made.append(Slow(create_drafter(stage, context), clock, ms))
        return made[-1]

    monkeypatch.setattr(vllm, "create_drafter", create)
    taken, proposer = seconds(flat, requests, repeating, "auto", clock)
    assert not proposer.statistics().notes
    return taken, [drafter.spent for drafter in made]


@pytest.mark.parametrize("requests", [1, 8, 32])
def test_it_stops_where_drafting_costs_more_than_it_gains(
    monkeypatch: pytest.MonkeyPatch, requests: int
) -> None:
    """Every draft is right, and takes longer than the forwards that it saves. What a drafter's first call
    takes is not known before.
    """
    plain, _ = seconds(flat, requests, repeating, "off")
    drafted, spent = slow_seconds(monkeypatch, 400.0 / requests**0.5, requests)
    assert all(1 <= len(its) < 10 for its in spent)
    assert drafted < 1.03 * plain + 0.5 * 0.01 * requests + sum(its[0] for its in spent)


@pytest.mark.parametrize("requests", [1, 8, 32])
def test_it_goes_on_where_drafting_costs_little(monkeypatch: pytest.MonkeyPatch, requests: int) -> None:
    plain, _ = seconds(flat, requests, repeating, "off")
    drafted, _ = slow_seconds(monkeypatch, 0.05, requests)
    assert plain / drafted > 1.8
