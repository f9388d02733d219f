"""What attempts to draft cost in virtual time: by default, in a curve's file, and in replays."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path

import pytest

from foredraft.bench.attempt_cost import FREE, AttemptCost, usual_cost
from foredraft.bench.charge import charge
from foredraft.bench.curves import Curve, find_curve, find_curves
from foredraft.bench.replay import replay
from foredraft.bench.replay_model import ReplayModel
from foredraft.bench.replay_report import replay_report
from foredraft.bench.trace import Trace, TraceSet
from foredraft.engine.engine import Engine
from foredraft.errors import ConfigError
from foredraft.types import SamplingParams

POINTS = {1: 1.0, 64: 20.0}


def noise(count: int, seed: int) -> tuple[int, ...]:
    return tuple(random.Random(seed).choices(range(1000), k=count))


def recorded(*pairs: tuple[tuple[int, ...], tuple[int, ...]]) -> TraceSet:
    traces = [Trace(str(i), "c", prompt, output) for i, (prompt, output) in enumerate(pairs)]
    return TraceSet("made up", 1000, "h", (), traces)


NOISE = recorded((noise(30, 1), noise(101, 2)))


def test_the_usual_cost_is_as_measured_and_in_proportion_where_forwards_are_faster() -> None:
    measured = usual_cost(4.0)
    assert measured.of("suffix") == pytest.approx(0.06)
    assert measured.of("recycle") == pytest.approx(0.04)
    assert measured.choosing == pytest.approx(0.23)
    assert usual_cost(40.0) == measured
    half = usual_cost(2.0)
    assert half.of("suffix") == pytest.approx(0.03)
    assert half.of("a drafter of somebody's") == pytest.approx(measured.of("a drafter of somebody's") / 2)
    assert half.choosing == pytest.approx(0.115)


def test_a_curve_without_the_figure_has_the_usual_cost(tmp_path: Path) -> None:
    path = tmp_path / "curves.json"
    path.write_text(
        json.dumps({"about": "no asking", "curves": {"a": {"1": 1, "2": 1.5}, "b": {"1": 1, "2": 2}}}),
        encoding="utf-8",
    )
    for curve in (*find_curves(str(path)), find_curve("steep")):
        assert curve.attempts == usual_cost(curve.v1_ms)


def test_a_file_may_say_what_asking_takes(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    asking = {"suffix": 0.2, "other": 0.1, "choosing": 0.3, "resting": 0.04}
    path.write_text(
        json.dumps({"curves": {"mine": {"points": {"1": 1, "2": 1.5}, "asking_ms": asking}}}),
        encoding="utf-8",
    )
    found = find_curve(str(path)).attempts
    assert found == AttemptCost({"suffix": 0.2}, other=0.1, choosing=0.3, round=0.04)
    assert [found.of("suffix"), found.of("recycle")] == [0.2, 0.1]


def test_what_a_file_does_not_name_takes_no_time(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    path.write_text('{"curves": {"mine": {"points": {"1": 1, "2": 2}, "asking_ms": {}}}}', encoding="utf-8")
    assert find_curve(str(path)).attempts == FREE


@pytest.mark.parametrize(
    ("asking", "says"),
    [
        (0.3, "'asking_ms' must map drafters to milliseconds"),
        ({"suffix": "fast"}, "'asking_ms' must map drafters to milliseconds"),
        ({"suffix": None}, "'asking_ms' must map drafters to milliseconds"),
        ({"suffix": True}, "'asking_ms' must map drafters to milliseconds"),
        ({"choosing": -0.1}, "not negative"),
        ({"other": "NaN"}, "'asking_ms' must map drafters to milliseconds"),
        ({"other": float("nan")}, "not negative"),
    ],
)
def test_a_bad_figure_is_said_to_be_one(tmp_path: Path, asking: object, says: str) -> None:
    path = tmp_path / "bad.json"
    data = {"curves": {"a": {"points": {"1": 1, "2": 2}, "asking_ms": asking}}}
    path.write_text(json.dumps(data), encoding="utf-8")
    with pytest.raises(ConfigError, match=says):
        find_curve(str(path))


def test_a_static_drafter_pays_for_its_lookup_in_each_round() -> None:
    """Nothing is found: 100 plain rounds of 10 ms, each but the last, which has no room for a draft, with a
    lookup of 1 ms; nobody chooses.
    """
    curve = Curve("c", POINTS, attempt_ms=AttemptCost({"ngram-simple": 1.0}, other=7.0, choosing=50.0))
    [row] = replay(NOISE, curve, "ngram-simple:n=3,m=4").rows
    assert [row.rounds, row.drafted] == [100, 0]
    assert row.cost == pytest.approx(109.9)
    assert row.attempts == pytest.approx(9.9)
    [free] = replay(NOISE, replace(curve, attempt_ms=FREE), "ngram-simple:n=3,m=4").rows
    assert [free.cost, free.attempts] == pytest.approx([100.0, 0.0])


def test_every_drafter_that_is_asked_is_charged() -> None:
    curve = Curve("c", POINTS, attempt_ms=AttemptCost({"ngram-simple": 1.0}, other=0.5, choosing=0.0))
    [row] = replay(NOISE, curve, "ngram-simple:n=3,m=4;ngram-mod:n=6,max=4,min=0").rows
    assert row.attempts == pytest.approx(99 * 0.15)


def test_plain_decoding_asks_nobody() -> None:
    [row] = replay(NOISE, Curve("c", POINTS), "off").rows
    assert [row.cost, row.attempts] == pytest.approx([100.0, 0.0])


def test_auto_pays_for_attempts_and_for_choosing_and_attempts_less_where_that_is_dear() -> None:
    passage = noise(120, 3)
    texts = recorded((passage, passage), (noise(30, 4), noise(200, 5)))
    cheap, dear, choosy = (
        replay(texts, Curve("c", POINTS, attempt_ms=asking), "auto").rows
        for asking in (
            AttemptCost({}, other=0.001, choosing=0.0),
            AttemptCost({}, other=0.2, choosing=0.0),
            AttemptCost({}, other=0.2, choosing=0.5),
        )
    )
    assert 0 < cheap[1].attempts < dear[1].attempts, "noise is asked about as well"
    asked = [row.attempts / ms for row, ms in ((cheap[1], 0.001), (dear[1], 0.2))]
    assert asked[1] < 0.5 * asked[0], "the planner hears what asking takes, and holds back"
    assert choosy[0].attempts > dear[0].attempts
    assert dear[1].speedup > 0.97


def test_auto_pays_for_every_round_and_static_settings_do_not() -> None:
    curve = Curve("c", POINTS, attempt_ms=AttemptCost({}, round=0.2))
    [row] = replay(NOISE, curve, "auto").rows
    assert row.rounds == 100
    assert row.attempts == pytest.approx(99 * 0.02), "in the last one no draft has room"
    dear = replace(curve, attempt_ms=AttemptCost({}, other=0.5, round=0.2))
    [both] = replay(NOISE, dear, "auto").rows
    assert 100 * 0.02 < both.attempts < 100 * 0.02 + 0.5 * 100 * 0.05, "few rounds have an attempt"
    [static] = replay(NOISE, curve, "ngram-simple:n=3,m=4").rows
    assert static.attempts == 0.0


def test_a_further_request_in_a_round_takes_less_than_the_first() -> None:
    texts = recorded(*((noise(30, i), noise(21, 100 + i)) for i in range(3)))
    model = ReplayModel(
        texts, Curve("c", {1: 1.0, 3: 1.0}, attempt_ms=AttemptCost({}, other=1.0)), sequences=3
    )
    with Engine(model, clock=model.clock) as engine:
        engine.set_speculation("ngram-simple:n=3,m=4")
        meter = charge(engine, model)
        engine.run([engine.add(list(t.prompt), SamplingParams(max_tokens=21)) for t in texts.traces])
    assert 1e3 * meter.seconds == pytest.approx(19 * 1.44)
    assert 1e3 * model.seconds == pytest.approx(20 * 10.0 + 19 * 1.44)


def test_the_report_says_what_was_charged() -> None:
    curve = Curve("mine", POINTS, attempt_ms=AttemptCost({"suffix": 0.2}, other=0.1, choosing=0.3))
    texts = recorded((noise(60, 3), noise(60, 3)))
    results = [replay(texts, which, "suffix") for which in (curve, replace(curve, name="b", attempt_ms=FREE))]
    report = replay_report(results, source="here", traces=texts)
    charged = report.about["attempts charged"]
    assert charged == "mine: suffix 0.2 ms a round; b: nothing"
    adaptive = replay_report([replay(texts, curve, "auto")], source="here", traces=texts)
    assert adaptive.about["attempts charged"].startswith("mine: suffix 0.2, recycle 0.1, ")
    assert adaptive.about["attempts charged"].endswith(", choosing 0.3 ms a round")
    share = results[0].attempts
    assert 0 < share < 0.05
    assert report.facts["suffix on mine"]["attempts"] == f"{share:.1%} of the time"
    assert report.facts["suffix on b"]["attempts"] == "0.0% of the time"
