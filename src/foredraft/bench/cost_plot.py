"""A profile's cost curves as a picture. matplotlib is an extra, imported for a plot only."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING

from foredraft.bench.cost_report import setting_text, to_curve
from foredraft.bench.curves import Curve
from foredraft.bench.plots import check_plotting
from foredraft.engine.profile_store import Profile
from foredraft.errors import ConfigError
from foredraft.files import check_folder, write_output

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

KINDS = (".png", ".svg")

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
"""Told apart by the colour-blind (Okabe and Ito 2008)."""

_INCHES = (8.0, 5.6)
_DPI = 150
_TICKS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)


def check_plot_file(path: Path) -> None:
    """Say what is wrong before anything is measured. Raises ConfigError, MissingDependencyError."""
    if path.suffix.lower() not in KINDS:
        raise ConfigError(f"{path} is no kind of picture known here.", hint="Name a .png or .svg file.")
    check_folder(path)
    check_plotting()


def write_plot(profile: Profile, path: Path) -> None:
    """Draw V(n)/V(1), a curve for each depth, into a .png or .svg file.

    Raises MissingDependencyError; ConfigError where the file cannot be written.
    """
    drawn = figure(profile)
    from matplotlib import rc_context

    kind = path.suffix.lower().lstrip(".")
    content = io.BytesIO()
    # Text stays text in an SVG; without date and random names the same profile is the same bytes.
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "foredraft"}):
        drawn.savefig(content, format=kind, dpi=_DPI, metadata={"Date": None} if kind == "svg" else None)
    try:
        write_output(path, content.getvalue(), mode=0o644)
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror or error}.") from error


def figure(profile: Profile) -> Figure:
    """The picture, as an object of matplotlib. Raises MissingDependencyError."""
    check_plotting()
    from matplotlib.figure import Figure

    drawn = Figure(figsize=_INCHES, layout="constrained")
    axes = drawn.subplots()
    curves = {depth: to_curve(profile, depth) for depth in sorted(profile.curve)}
    most = max(rows for curve in curves.values() for rows in curve.points)
    highest = max(ratio for curve in curves.values() for ratio in curve.points.values())
    _draw_break_even(axes, most, top=1.15 * max(most, highest))
    for colour, (depth, curve) in zip(_cycle(len(curves)), curves.items(), strict=True):
        label = f"{depth:,} tokens in the KV cache: V(1) = {curve.v1_ms:.1f} ms"
        _draw_curve(axes, curve, label, colour)
    _label(axes, profile, most)
    drawn.legend(loc="outside lower center", ncols=2, frameon=False)
    return drawn


def _cycle(count: int) -> list[str]:
    return [COLOURS[i % len(COLOURS)] for i in range(count)]


def _draw_break_even(axes: Axes, most: int, *, top: float) -> None:
    """The line V(n) = n: n tokens in the time of n plain ones."""
    right = 1.08 * most
    line = [0.9, right]
    axes.fill_between(line, line, [top, top], color="#999999", alpha=0.14, linewidth=0)
    axes.plot(line, line, color="#555555", linestyle="--", linewidth=1.2, label="all accepted = break-even")
    axes.annotate(
        "does not pay even if all is accepted",
        (1.05, 0.86 * top),
        va="top",
        color="#555555",
        fontsize=10,
        style="italic",
    )
    axes.set_xlim(0.9, right)
    axes.set_ylim(0.8, top)


def _draw_curve(axes: Axes, curve: Curve, label: str, colour: str) -> None:
    """The time of every number of rows as a step, and a mark where it was measured."""
    every = range(1, max(curve.points) + 1)
    ratios = [curve.ratio(rows) if len(curve.points) > 1 else 1.0 for rows in every]
    axes.plot(every, ratios, drawstyle="steps-mid", color=colour, linewidth=1.4)
    axes.plot(list(curve.points), list(curve.points.values()), "o", color=colour, markersize=4.5, label=label)


def _label(axes: Axes, profile: Profile, most: int) -> None:
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    ticks = [tick for tick in _TICKS if tick <= most]
    axes.set_xticks(ticks, [str(tick) for tick in ticks])
    high = axes.get_ylim()[1]
    axes.set_yticks([tick for tick in _TICKS if tick <= high], [f"{t}×" for t in _TICKS if t <= high])
    axes.minorticks_off()
    axes.set_xlabel("n: tokens in one forward (a draft of n − 1 tokens)")
    axes.set_ylabel("V(n) / V(1): its time in plain decoding steps")
    axes.set_title(profile.name or "Batch cost curve", loc="left", fontsize=13, pad=24)
    about = setting_text(profile.key)
    axes.text(0, 1.02, about, transform=axes.transAxes, fontsize=8.5, color="#555555", in_layout=False)
    axes.grid(color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
