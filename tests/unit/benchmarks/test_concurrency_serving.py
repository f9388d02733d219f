"""What `benchmarks/concurrency.py` measures: requests in flight, in turns, and tokens over their time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from concurrency import Serving, report
from foredraft import Engine
from foredraft.bench.curves import find_curve
from foredraft.bench.replay_model import ReplayModel
from foredraft.bench.slices import in_slices, whole
from foredraft.bench.trace import shipped_traces
from foredraft.types import Event, FinishEvent, FinishReason

MOST = 12
TRACES = shipped_traces()
WORK = [(list(trace.prompt), min(MOST, len(trace.output))) for trace in TRACES.traces[:5]]
TOKENS = sum(tokens for _, tokens in WORK)


class Watched(Serving):
    """Keeps how many requests were in flight after each round."""

    def _round(self) -> None:
        super()._round()
        flying.append(self._running)


flying: list[int] = []


@contextmanager
def serving(level: int, kind: type[Serving] = Serving) -> Iterator[tuple[Serving, ReplayModel]]:
    model = ReplayModel(TRACES, find_curve("flat"), sequences=level)
    with Engine(model, clock=model.clock) as engine:
        engine.set_speculation("off")
        yield kind(engine, WORK, level, model.clock), model


@pytest.mark.parametrize("level", [1, 2, 8])
def test_the_rate_is_all_tokens_over_the_time_they_took(level: int) -> None:
    with serving(level) as (work, model):
        began = model.clock()
        assert whole(work) == pytest.approx(TOKENS / (model.clock() - began))


def test_so_many_requests_are_in_flight() -> None:
    flying.clear()
    with serving(2, Watched) as (work, _):
        whole(work)
    assert max(flying) == 2
    assert flying[-1] == 0


def test_a_pause_costs_nothing() -> None:
    with serving(2) as (alone, _):
        expected = whole(alone)
    with serving(2) as (one, model), serving(2) as (other, _):
        assert one.go_on(0.0) is None
        model.seconds += 1000.0  # somebody else's turn
        rates = dict(in_slices({"one": one, "other": other}, 0.01))
    assert rates["other"] == pytest.approx(expected)
    assert rates["one"] == pytest.approx(expected)


def test_an_answer_that_fails_ends_the_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(1) as (work, _):
        step = work._engine.step

        def failing() -> list[Event]:
            return [
                replace(event, reason=FinishReason.ERROR, error="no luck")
                if isinstance(event, FinishEvent)
                else event
                for event in step()
            ]

        monkeypatch.setattr(work._engine, "step", failing)
        with pytest.raises(SystemExit, match="no luck"):
            whole(work)


def test_the_columns_are_those_of_the_header_whoever_ended_first(capsys: pytest.CaptureFixture[str]) -> None:
    share = report(4, ["off", "a", "auto"], {"auto": [3.0, 3.0], "off": [1.0, 1.0], "a": [2.0, 2.0]})
    assert capsys.readouterr().out.split()[:4] == ["4", "1.0", "2.0", "3.0"]
    assert share == 1.5
