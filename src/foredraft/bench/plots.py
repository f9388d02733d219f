"""Plots of a report, as SVG text. matplotlib is imported here only, and only when something is drawn."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from typing import TYPE_CHECKING, Any

from foredraft.bench.report import Report
from foredraft.bench.results import ALL
from foredraft.registry import missing_dependency

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK = "#1f2328"
"""Text and lines of a plot that stands alone; on a page they take the page's colour instead."""

COLOURS = ("#4c78a8", "#f28e2b", "#3a9d5d", "#d1495b", "#8e6bbf", "#2a9d9d", "#b07a3f", "#c06c9e")
"""One for each setting, chosen to be told apart on white and on black."""

_SETTINGS: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "foredraft",
    "text.parse_math": False,
    "axes.facecolor": "none",
    "font.family": "sans-serif",
    "font.sans-serif": ["system-ui", "Helvetica", "Arial", "DejaVu Sans"],
    "font.size": 10,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlecolor": INK,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "legend.frameon": False,
    "legend.fontsize": 9,
}

WORST = "worst prompt"

Draw = Callable[["Axes", Report], None]


@dataclass(frozen=True, slots=True)
class Plot:
    """A plot and what it shows; a `wide` one takes the width of a page, others half of it."""

    title: str
    svg: str
    wide: bool = False


def plots(report: Report) -> list[Plot]:
    """A plot of everything that the report has the figures for, to be put on one HTML page.

    Raises MissingDependencyError without matplotlib.
    """
    made: list[Plot] = []
    if _compared(report):
        made.append(Plot("Speedup", speedup_plot(report), wide=True))
    if report.depths:
        made.append(Plot("Acceptance by depth", _drawn(report, depth_axes)))
    if report.timeline:
        timeline = _drawn(report, timeline_axes, size=(10.2, 2.6))
        made.append(Plot("One answer, round by round", timeline, wide=True))
    return [replace(plot, svg=_for_page(plot.svg, f"plot{i}-")) for i, plot in enumerate(made)]


def main_plot(report: Report) -> str:
    """The plot of the speedups, to stand alone. Raises MissingDependencyError."""
    return speedup_plot(report, background="white")


def check_plotting() -> None:
    """Raises MissingDependencyError if nothing can be drawn: better before hours of measuring than after."""
    try:
        import_module("matplotlib")
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != "matplotlib":
            raise
        raise missing_dependency("matplotlib", "Drawing plots") from None


# --- what is drawn -------------------------------------------------------------------------------------


def speedup_plot(report: Report, *, background: str = "none") -> str:
    """Bars: geometric mean of the speedup by category and setting, with the worst prompt as a mark."""
    categories = len({score.category for score in report.scores}) + 1
    bars = categories * max(1, len(_compared(report)))
    size = (10.2, 3.4 if bars <= 60 else 5.0)
    return _drawn(report, speedup_axes, size=size, background=background)


def speedup_axes(axes: Axes, report: Report) -> None:
    """See `speedup_plot`."""
    settings = _compared(report)
    found = {(summary.category, summary.setting): summary for summary in report.summaries}
    categories = list(dict.fromkeys(category for category, _ in found))
    width = 0.8 / max(1, len(settings))
    for place, setting in enumerate(settings):
        xs, heights, worst = [], [], []
        for number, category in enumerate(categories):
            summary = found.get((category, setting))
            if summary is not None and summary.speedup is not None and summary.worst is not None:
                xs.append(number + (place - (len(settings) - 1) / 2) * width)
                heights.append(summary.speedup)
                worst.append(summary.worst)
        colour = _colour(report, setting)
        axes.bar(xs, heights, width * 0.92, color=colour, label=setting)
        axes.plot(xs, worst, linestyle="none", marker="_", markersize=9, markeredgewidth=1.6, color=INK)
    axes.plot([], [], linestyle="none", marker="_", markersize=9, markeredgewidth=1.6, color=INK,
              label=WORST)  # fmt: skip
    axes.axhline(1.0, color=INK, linewidth=1.0)
    if categories[-1:] == [ALL] and len(categories) > 1:
        axes.axvline(len(categories) - 1.5, color=INK, linewidth=0.6, alpha=0.4)
    axes.set_xticks(range(len(categories)), categories)
    axes.tick_params(axis="x", length=0)
    axes.set_ylabel(f"speedup over {report.baseline}")
    add_grid(axes, "y")
    _legend(axes)


def depth_axes(axes: Axes, report: Report) -> None:
    """Lines: the share of drafts whose token at each depth was accepted."""
    for setting, depth in report.depths.items():
        axes.plot(
            range(1, len(depth) + 1),
            [100 * share for share in depth],
            marker="o",
            markersize=3,
            color=_colour(report, setting),
            label=setting,
        )
    axes.set_xlabel("depth in the draft")
    axes.set_ylabel("% of drafts right up to here")
    axes.set_ylim(0, 102)
    axes.set_xlim(left=0.5)
    _whole_numbers(axes)
    add_grid(axes, "both")
    _legend(axes)


def timeline_axes(axes: Axes, report: Report) -> None:
    """Bars: accepted draft tokens of each round of one answer, where it stood in the answer."""
    assert report.timeline is not None
    position = 1
    bars: dict[str, list[tuple[int, int]]] = {}
    for run in report.timeline.runs:
        if run.accepted:
            bars.setdefault(run.drafter, []).append((position, run.accepted))
        position += run.accepted + 1
    for number, (drafter, places) in enumerate(bars.items()):
        lengths = [length for _, length in places]
        axes.bar(
            [place for place, _ in places],
            lengths,
            width=lengths,
            align="edge",
            color=COLOURS[number % len(COLOURS)],
            label=drafter,
        )
    axes.set_xlim(0, position)
    axes.set_xlabel(f"token of the answer to {report.timeline.prompt}, {report.timeline.setting}")
    axes.set_ylabel("accepted at once")
    _whole_numbers(axes)
    add_grid(axes, "y")
    _legend(axes)


# --- how it is drawn -----------------------------------------------------------------------------------


def _compared(report: Report) -> list[str]:
    return [setting for setting in report.settings if setting != report.baseline]


def _colour(report: Report, setting: str) -> str:
    """The same in every plot of a report."""
    settings = _compared(report)
    return COLOURS[settings.index(setting) % len(COLOURS)] if setting in settings else INK


def add_grid(axes: Axes, axis: str) -> None:
    """Faint lines behind everything else: "x", "y" or "both"."""
    axes.grid(axis=axis, color=INK, alpha=0.12, linewidth=0.8)  # type: ignore[arg-type]
    axes.set_axisbelow(True)


def _legend(axes: Axes) -> None:
    """Above the plot, where it hides nothing; what stands for every setting comes last."""
    handles, labels = axes.get_legend_handles_labels()
    ranked = sorted(zip(labels, handles, strict=True), key=lambda entry: entry[0] == WORST)
    axes.legend(
        [handle for _, handle in ranked],
        [label for label, _ in ranked],
        loc="lower left",
        bbox_to_anchor=(0, 1.0),
        ncols=_legend_columns(axes, labels),
        borderaxespad=0.2,
        columnspacing=1.2,
    )


def _legend_columns(axes: Axes, labels: Sequence[str]) -> int:
    """As many as fit over the plot: a letter is about 5 points wide, a line sample and its gaps 50."""
    panels = len(axes.figure.axes)
    room = 72 * axes.get_figure(root=True).get_figwidth() / panels - 50  # type: ignore[union-attr]
    return max(1, int(room / (5 * max(map(len, labels), default=1) + 50)))


def _whole_numbers(axes: Axes) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.yaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))


def _drawn(
    report: Report, draw: Draw, size: tuple[float, float] = (5.0, 3.4), background: str = "none"
) -> str:
    return _figure(lambda figure: draw(figure.subplots(), report), size, background)


def _figure(fill: Callable[[Figure], None], size: tuple[float, float], background: str) -> str:
    return picture(fill, size, background=background).decode()


def picture(
    fill: Callable[[Figure], None], size: tuple[float, float], *, kind: str = "svg", background: str = "white"
) -> bytes:
    """What `fill` draws on a figure of `size` inches, as "svg" or "png". The same figures give the same
    bytes: no date, and no random names in it. Raises MissingDependencyError without matplotlib.
    """
    check_plotting()
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(_SETTINGS):
        figure = Figure(figsize=size, facecolor=background, layout="constrained")
        fill(figure)
        content = io.BytesIO()
        figure.savefig(content, format=kind, dpi=150, metadata={"Date": None} if kind == "svg" else None)
    return content.getvalue()


def _for_page(svg: str, prefix: str) -> str:
    """An SVG text as a part of an HTML page: in the page's text colour, and with names of its own.

    A figure's style sheet would be the whole page's, and all figures use the same ids.
    """
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>|<style .*?</style>", "", svg, flags=re.DOTALL)
    svg = svg.replace(INK, "currentColor")
    svg = re.sub(r'\bid="', f'id="{prefix}', svg)
    svg = re.sub(r"url\(#", f"url(#{prefix}", svg)
    return re.sub(r'href="#', f'href="#{prefix}', svg)
