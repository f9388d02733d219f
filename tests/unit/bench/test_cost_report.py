"""What a cost curve means: the numbers of the table and of the JSON object."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from rich.console import Console

from foredraft.bench.cost_measure import Measurement
from foredraft.bench.cost_report import (
    best_chain,
    break_even,
    cost_points,
    cost_tables,
    measurement_dict,
    setting_text,
    to_curve,
)
from foredraft.bench.curves import Curve, find_curve
from foredraft.engine.profile_store import Profile, ProfileKey

STEPS = {1: 5.0, 2: 7.8, 4: 10.0, 7: 18.0, 8: 14.25, 16: 90.0}
PROFILE = Profile(
    key=ProfileKey("abc", "llama.cpp 1.0", "cpu", "2", "bf16/f16"),
    name="SmolLM2 135M",
    curve={64: STEPS, 512: {rows: 1.2 * ms for rows, ms in STEPS.items()}},
    measured_at=datetime(2026, 11, 21, 10, 30, tzinfo=UTC),
    snapshot_ms=3.0,
    restore_ms=None,
    rounds=36,
)
MEASUREMENT = Measurement(PROFILE, best=PROFILE.curve, passes=3, slowdown=1.02)


def expected_tokens(k: int, p: float) -> float:
    return sum(p**i for i in range(k + 1))


# --- break-even ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("k", [1, 2, 3, 7, 15, 62])
@pytest.mark.parametrize("ratio", [1.01, 1.3, 1.9, 2.0])
def test_break_even_is_where_the_draft_pays_for_itself(k: int, ratio: float) -> None:
    p = break_even(k, ratio)
    assert p is not None
    assert 0 < p <= 1
    assert expected_tokens(k, p) == pytest.approx(ratio, rel=1e-6)


def test_a_draft_of_one_token_pays_from_the_extra_cost_on() -> None:
    assert break_even(1, 1.56) == pytest.approx(0.56)


@pytest.mark.parametrize(("k", "ratio"), [(1, 2.0), (3, 4.0), (7, 8.0)])
def test_all_accepted_is_just_enough(k: int, ratio: float) -> None:
    assert break_even(k, ratio) == pytest.approx(1.0)


@pytest.mark.parametrize(("k", "ratio"), [(1, 2.001), (3, 4.55), (15, 18.0)])
def test_a_draft_that_never_pays(k: int, ratio: float) -> None:
    assert break_even(k, ratio) is None


@pytest.mark.parametrize("ratio", [1.0, 0.97, 0.5])
def test_a_draft_that_costs_nothing_always_pays(ratio: float) -> None:
    assert break_even(3, ratio) == 0.0


# --- points and tables ---------------------------------------------------------------------------------


def test_the_points_of_a_depth() -> None:
    points = {point.rows: point for point in cost_points(PROFILE.curve[64])}
    assert list(points) == list(STEPS)
    plain, eight, sixteen = points[1], points[8], points[16]
    assert (plain.ratio, plain.draft, plain.break_even) == (1.0, 0, None)
    assert plain.tokens_per_second == pytest.approx(200.0)
    assert (eight.draft, eight.ms) == (7, 14.25)
    assert eight.ratio == pytest.approx(2.85)
    assert eight.tokens_per_second == pytest.approx(8 / 14.25e-3)
    assert expected_tokens(7, eight.break_even or 0) == pytest.approx(2.85)
    assert sixteen.break_even is None


def test_the_draft_length_that_pays_most_when_all_is_accepted() -> None:
    assert best_chain(cost_points(PROFILE.curve[64])) == 7


def shown(measurement: Measurement = MEASUREMENT, *, width: int = 100) -> str:
    console = Console(file=io.StringIO(), width=width)
    for table in cost_tables(measurement):
        console.print(table)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_the_table_has_a_line_for_each_size_and_a_part_for_each_depth() -> None:
    text = shown()
    assert "64 tokens" in text
    assert "512 tokens" in text
    lines = [line.split() for line in text.splitlines()]
    assert ["1", "5.00", "1.00", "200.0", "–", "–"] in lines
    assert ["8", "14.25", "2.85", "561.4", "7", "66", "%"] in lines
    assert ["16", "90.00", "18.00", "177.8", "15", "never"] in lines
    assert ["8", "17.10", "2.85", "467.8", "7", "66", "%"] in lines


@pytest.mark.parametrize("width", [30, 40, 60])
def test_a_narrow_terminal_cuts_no_figure_and_no_heading(width: int) -> None:
    slow = {depth: {rows: 100 * ms for rows, ms in sizes.items()} for depth, sizes in PROFILE.curve.items()}
    text = shown(Measurement(replace(PROFILE, curve=slow), slow, passes=3, slowdown=1.0), width=width)
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= width
    words = text.split()
    for figure in ("1425.00", "2.85", "5.6", "never", "V(n)/V(1)", "draft", "ms"):
        assert figure in words
    for heading in ("tokens/s if", "all accepted", "pays from"):
        assert text.count(heading) >= len(slow)
    paying = [line.split() for line in text.splitlines() if line.rstrip().endswith("66 %")]
    assert [line[0] for line in paying] == ["8", "8"], "the size stands in front of every part"


def test_a_busy_machine_is_mentioned() -> None:
    busy = Measurement(PROFILE, PROFILE.curve, passes=3, slowdown=1.7)
    assert "1.7 times" in shown(busy)
    assert "times" not in shown()


def test_a_depth_that_was_not_reached_is_mentioned() -> None:
    cut = Measurement(PROFILE, PROFILE.curve, passes=3, slowdown=1.0, cut=2048)
    assert "with 2,048 tokens would have taken long" in shown(cut)
    assert "--depth 2048" in shown(cut)
    assert "--depth" not in shown()
    assert measurement_dict(cut)["cut"] == 2048


# --- JSON and curves -----------------------------------------------------------------------------------


def test_the_json_object() -> None:
    data = json.loads(json.dumps(measurement_dict(MEASUREMENT), allow_nan=False))
    assert data["model"] == "SmolLM2 135M"
    assert data["key"]["kv_type"] == "bf16/f16"
    assert data["measured_at"] == "2026-11-21T10:30:00+00:00"
    assert (data["passes"], data["snapshot_ms"], data["restore_ms"]) == (3, 3.0, None)
    assert [part["depth"] for part in data["depths"]] == [64, 512]
    points = {point["rows"]: point for point in data["depths"][0]["points"]}
    assert points[8]["ms"] == 14.25
    assert points[8]["best_ms"] == 14.25
    assert expected_tokens(7, points[8]["break_even"]) == pytest.approx(2.85)
    assert points[16]["break_even"] is None


def test_the_json_file_is_a_curve_for_replays(tmp_path: Path) -> None:
    file = tmp_path / "profile.json"
    file.write_text(json.dumps(measurement_dict(MEASUREMENT)))
    curve = find_curve(str(file))
    assert curve == to_curve(PROFILE, 512)


def test_a_curve_of_a_profile() -> None:
    curve = to_curve(PROFILE, 70)
    assert isinstance(curve, Curve)
    assert curve.name == "SmolLM2 135M"
    assert curve.v1_ms == 5.0
    assert curve.points == pytest.approx({rows: ms / 5.0 for rows, ms in STEPS.items()})
    assert "64 tokens" in curve.about
    assert "llama.cpp 1.0" in curve.about
    assert to_curve(PROFILE).v1_ms == pytest.approx(6.0)  # the depth that answers mostly have


def test_the_setting_in_a_line() -> None:
    assert setting_text(PROFILE.key) == "llama.cpp 1.0, cpu, 2 threads, KV bf16/f16"
    assert setting_text(ProfileKey("abc", "fake", "cpu", "1", "")) == "fake, cpu, 1 thread"
    named = ProfileKey("abc", "fake", "cpu", "1", "", processor="Fast 3000", instructions="avx2")
    assert setting_text(named) == "fake, cpu (Fast 3000), 1 thread"
    assert setting_text(ProfileKey("abc", "fake", "cpu", "", "")) == "fake, cpu"


def test_a_curve_of_a_model_without_a_name() -> None:
    from dataclasses import replace

    assert to_curve(replace(PROFILE, name="")).name
