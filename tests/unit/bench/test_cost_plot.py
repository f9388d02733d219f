"""The plot of V(n): a file of the kind asked for, with every curve and label in it."""

from __future__ import annotations

import re
import stat
import sys
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest

from foredraft.bench.cost_plot import check_plot_file, figure, write_plot
from foredraft.engine.profile_store import Profile, ProfileKey
from foredraft.errors import ConfigError, MissingDependencyError
from foredraft.installation import add_extra

PROFILE = Profile(
    key=ProfileKey("abc", "llama.cpp 1.0", "cpu", "2", "bf16/f16"),
    name="SmolLM2 135M",
    curve={64: {1: 5.0, 2: 7.8, 7: 18.0, 8: 14.25, 63: 120.0}, 512: {1: 6.0, 2: 9.0, 8: 40.0, 63: 160.0}},
    measured_at=datetime(2026, 11, 21, 10, 30, tzinfo=UTC),
)


def test_a_png(tmp_path: Path) -> None:
    file = tmp_path / "curve.png"
    write_plot(PROFILE, file)
    content = file.read_bytes()
    assert content.startswith(b"\x89PNG\r\n\x1a\n")
    width, height = (int.from_bytes(content[at : at + 4], "big") for at in (16, 20))
    assert width >= 1000
    assert height >= 600


def test_an_svg_says_what_it_shows(tmp_path: Path) -> None:
    file = tmp_path / "curve.SVG"
    write_plot(PROFILE, file)
    text = file.read_text()
    assert text.startswith("<?xml")
    words = " ".join(re.findall(r">([^<>]+)<", text))
    for label in ("SmolLM2 135M", "64 tokens", "512 tokens", "all accepted = break-even", "V(n) / V(1)"):
        assert label in words


def test_every_depth_has_a_curve_and_every_measurement_a_mark() -> None:
    (axes,) = figure(PROFILE).axes
    marks = [line for line in axes.lines if line.get_marker() not in ("None", "", None)]
    assert [np.asarray(line.get_xdata()).tolist() for line in marks] == [[1, 2, 7, 8, 63], [1, 2, 8, 63]]
    ratios = np.asarray(marks[0].get_ydata()).tolist()
    assert ratios == pytest.approx([1.0, 1.56, 3.6, 2.85, 24.0])
    stepped = [line for line in axes.lines if line.get_drawstyle() == "steps-mid"]
    assert [np.asarray(line.get_xdata()).tolist() for line in stepped] == [list(range(1, 64))] * 2


def test_a_plot_is_everybodys_to_read(tmp_path: Path) -> None:
    file = tmp_path / "curve.png"
    write_plot(PROFILE, file)
    assert stat.S_IMODE(file.stat().st_mode) == 0o644


def test_the_same_profile_gives_the_same_bytes(tmp_path: Path) -> None:
    for name in ("a.svg", "b.svg"):
        write_plot(PROFILE, tmp_path / name)
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()


def test_a_curve_of_plain_decoding_only(tmp_path: Path) -> None:
    from dataclasses import replace

    write_plot(replace(PROFILE, curve={64: {1: 5.0}}), tmp_path / "curve.png")


# --- said before anything is measured ------------------------------------------------------------------


@pytest.mark.parametrize("name", ["curve.pdf", "curve", "curve.png.txt"])
def test_another_kind_of_file(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match=r"\.png or \.svg"):
        check_plot_file(tmp_path / name)


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no folder"):
        check_plot_file(tmp_path / "nowhere" / "curve.png")


def test_without_matplotlib(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    for ask in (check_plot_file, lambda file: write_plot(PROFILE, file)):
        with pytest.raises(MissingDependencyError) as caught:
            ask(tmp_path / "curve.png")
        assert add_extra("bench") in str(caught.value)
    assert not (tmp_path / "curve.png").exists()


def test_a_file_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("foredraft.bench.cost_plot.write_output", refuse)
    with pytest.raises(ConfigError, match="No space left"):
        write_plot(PROFILE, tmp_path / "curve.png")
