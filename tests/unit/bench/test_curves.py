"""Cost curves: those that ship, and those in files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from foredraft.bench.curves import Curve, find_curve, find_curves, shipped_curves
from foredraft.bench.replay import replay
from foredraft.bench.trace import shipped_traces
from foredraft.errors import ConfigError


def test_those_that_ship() -> None:
    curves = shipped_curves()
    assert {"steep", "flat", "gpu", "cpu-q4_1", "cpu-q4_0", "cpu-f16", "moe"} <= set(curves)
    for curve in curves.values():
        assert curve.ratio(1) == 1.0
        assert curve.about
        assert all(curve.ratio(n) >= 1.0 for n in range(1, 80))
    assert find_curve("steep") == curves["steep"]


def test_linear_between_and_beyond() -> None:
    curve = Curve("x", {1: 1.0, 2: 1.5, 4: 2.0})
    assert [curve.ratio(n) for n in (1, 2, 3, 4, 6)] == [1.0, 1.5, 1.75, 2.0, 2.5]


def test_beyond_a_last_point_that_was_measured_too_low_rows_still_cost_something() -> None:
    """Linear from the last two points, 64 rows took less than no time, and a replay could not be rated."""
    curve = Curve("busy", {1: 1.0, 2: 1.26, 4: 2.79, 8: 2.42})
    assert curve.ratio(8) == 2.42
    assert curve.ratio(64) == pytest.approx(2.42 + 56 * 1.42 / 7)
    assert Curve("odd", {1: 1.0, 4: 1.2, 8: 0.9}).ratio(64) == pytest.approx(0.9)
    assert replay(shipped_traces(), curve, "suffix:max=48,min-p=0").speedup > 0


def test_a_file_is_scaled_to_one_row(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    path.write_text('{"1": 10, "2": 12, "8": 30}', encoding="utf-8")
    curve = find_curve(str(path))
    assert (curve.name, curve.ratio(8)) == ("mine", 3.0)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("no json", "cannot be read"),
        ("[]", "not a JSON object"),
        ('{"2": 1.5}', "needs 1 row"),
        ('{"curves": {"a": {"points": {"1": 1, "2": 1.5}, "resize": -0.1}}}', "'resize' is a part"),
        ('{"curves": {"a": {"points": {"1": 1, "2": 1.5}, "resize": 1.6}}}', "'resize' is a part"),
        ('{"1": 1, "2": "NaN"}', "not finite"),
        ('{"curves": {}}', "holds no curve"),
        ('{"1": 1}', "at least one more size"),
        ('{"1": 1, "2": -1}', "positive"),
        ('{"1": 1, "two": 2}', "numbers of rows"),
        (json.dumps({"curves": {"a": {"1": 1, "2": 2}, "b": {"1": 1, "2": 2}}}), "holds 2 curves"),
    ],
)
def test_a_bad_file_is_said_to_be_one(tmp_path: Path, content: str, says: str) -> None:
    path = tmp_path / "bad.json"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(ConfigError, match=says):
        find_curve(str(path))


def test_an_unknown_name_lists_those_there_are() -> None:
    with pytest.raises(ConfigError, match="no cost curve 'stepe'") as error:
        find_curve("stepe")
    assert "steep, flat, gpu" in (error.value.hint or "")


def test_a_change_of_size_is_in_the_curve_and_not_in_plain_decoding() -> None:
    curve = Curve("a", {1: 1.0, 2: 1.5, 8: 3.0}, resize=0.2)
    assert [curve.after(1, 1), curve.after(2, 1)] == pytest.approx([1.0, 1.2])
    assert [curve.after(1, 8), curve.after(2, 8), curve.after(8, 8)] == pytest.approx([3.0, 3.0, 2.8])


def test_a_file_may_hold_several(tmp_path: Path) -> None:
    path = tmp_path / "two.json"
    path.write_text(json.dumps({"curves": {"a": {"1": 1, "2": 2}, "b": {"1": 1, "2": 3}}}), encoding="utf-8")
    assert [(curve.name, curve.ratio(2)) for curve in find_curves(str(path))] == [("a", 2.0), ("b", 3.0)]
