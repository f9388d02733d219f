"""A score as a picture: what is accepted at each depth, how fast drafts of each length are, and whether the
draft knows when it is right.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from foredraft.bench.plots import COLOURS, INK, add_grid, picture
from foredraft.draft.passages import DEPTHS
from foredraft.draft.result import Result, RuleResult
from foredraft.draft.score import Tally
from foredraft.errors import ConfigError
from foredraft.files import write_output

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_INCHES = (11.4, 3.8)
_LARGEST_MARK = 260.0
"""Area, in square points, of a mark that stands for all tokens."""


def write_plot(result: Result, path: Path) -> None:
    """Draw it into a .png or .svg file. Raises MissingDependencyError; ConfigError where the file cannot be
    written.
    """
    content = picture(lambda figure: draw(figure, result), _INCHES, kind=path.suffix.lower().lstrip("."))
    try:
        write_output(path, content, mode=0o644)
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror or error}.") from error


def draw(figure: Figure, result: Result) -> None:
    """Three plots side by side."""
    figure.suptitle(f"{result.draft} as a draft for {result.model}", x=0.01, ha="left", fontsize=11)
    depths, lengths, calibration = figure.subplots(1, 3)
    _draw_depths(depths, result)
    _draw_lengths(lengths, result)
    _draw_calibration(calibration, result)
    figure.legend(*depths.get_legend_handles_labels(), loc="outside lower center", ncols=len(result.rules))


def _label(found: RuleResult) -> str:
    return f"{found.rule}, T {found.temperature:g}" if found.temperature else "greedy"


def _draw_depths(axes: Axes, result: Result) -> None:
    """Lines: the share accepted at each depth of tokens whose ancestors were."""
    for colour, found in zip(COLOURS, result.rules, strict=False):
        known = [(depth, share) for depth, share in enumerate(found.by_depth, 1) if share is not None]
        _line(axes, [depth for depth, _ in known], [100 * share for _, share in known], colour, _label(found))
    axes.set_ylim(0, 102)
    axes.set_xlabel("depth in the draft")
    axes.set_ylabel("% accepted, if all before were")
    _finish(axes)


def _draw_lengths(axes: Axes, result: Result) -> None:
    """Lines: the predicted speed with drafts of each length; a large mark at the best."""
    for colour, found in zip(COLOURS, result.rules, strict=False):
        known = [(length, speed) for length, speed in enumerate(found.speedups, 1) if speed is not None]
        _line(axes, [length for length, _ in known], [speed for _, speed in known], colour, _label(found))
        if found.best is not None:
            axes.plot(*([value] for value in found.best), "o", markersize=8, color=colour)
    axes.axhline(1.0, color=INK, linewidth=1.0)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("tokens of a draft")
    axes.set_ylabel("speed over plain decoding")
    _finish(axes)


def _draw_calibration(axes: Axes, result: Result) -> None:
    """Marks: how often tokens of a probability were right, as large as there are many of them."""
    axes.plot([0, 100], [0, 100], color=INK, linewidth=0.8, linestyle=(0, (4, 3)))
    for colour, tally in zip(COLOURS, result.tallies, strict=False):  # match comes first at each temperature
        xs, ys, sizes = _marks(tally)
        axes.plot(xs, ys, color=colour, linewidth=1.0, marker="o", markersize=3)
        axes.scatter(xs, ys, sizes, color=colour, alpha=0.35, linewidths=0)
    axes.set_xlim(-3, 105)
    axes.set_ylim(-3, 105)
    axes.set_xlabel("the draft's own probability, %")
    axes.set_ylabel("% right")
    add_grid(axes, "both")


def _marks(tally: Tally) -> tuple[list[float], list[float], list[float]]:
    """(mean probability, share that was right, area) of every bin that has tokens."""
    known = [
        (100 * mean, 100 * found.value, _LARGEST_MARK * (tally.of_all(found) or 0.0))
        for found, mean in zip(tally.bins, tally.means, strict=True)
        if found.value is not None and mean is not None
    ]
    return [x for x, _, _ in known], [y for _, y, _ in known], [area for _, _, area in known]


def _line(axes: Axes, xs: list[int], ys: list[float], colour: str, label: str) -> None:
    axes.plot(xs, ys, color=colour, marker="o", markersize=3, label=label)


def _finish(axes: Axes) -> None:
    axes.set_xlim(0.5, DEPTHS + 0.5)
    axes.set_xticks(range(1, DEPTHS + 1))
    add_grid(axes, "both")
