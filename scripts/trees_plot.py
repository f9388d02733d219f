"""Draw docs/assets/trees.svg: how much more a tree of drafts brings than a chain, computed.

A head's first choice is right with one probability at every depth, its second choice in `SECOND` of the
places where the first is wrong, and further ones never; a node's chance is the product along its path, and
the likeliest nodes are the draft (EAGLE-2, Li et al. 2024, arXiv 2406.16858). A level of the draft takes
`LEVEL` of a plain forward, for a tree as for a chain. Best tree and best chain, of any size, are compared on
cost curves that ship (`foredraft/bench/cost_curves.json`). Nothing is measured here, and drafts of the same
chance everywhere are simpler than real ones.

    python scripts/trees_plot.py
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import nlargest
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from foredraft.bench.curves import Curve, shipped_curves
from foredraft.bench.plots import COLOURS, INK, add_grid, picture
from foredraft.types import MAX_DRAFT_TOKENS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SECOND = 0.15
"""Measured of a head of the default model, at depth 1 and 2: lab/notes/heads.md."""

LEVEL = 0.03
DEEPEST = 12
FIRST = np.linspace(0.1, 0.95, 35)
CURVES = ("gpu", "flat", "cpu-f16", "cpu-q4_0")
TARGET = Path(__file__).parent.parent / "docs" / "assets" / "trees.svg"


def best_rate(levels: Sequence[Sequence[float]], forward: Sequence[float]) -> float:
    """The highest rate over plain decoding of drafts with nodes of these chances, by depth: of any number of
    levels, and of the likeliest nodes of those.
    """
    best = 1.0
    for depth in range(1, len(levels) + 1):
        nodes = nlargest(MAX_DRAFT_TOKENS, (chance for level in levels[:depth] for chance in level))
        tokens = 1.0
        for count, chance in enumerate(nodes, 1):
            tokens += chance
            best = max(best, tokens / (forward[count] + depth * LEVEL))
    return best


def levels_of(first: float, second: float) -> list[list[float]]:
    """The chances of the likeliest nodes of each depth."""
    levels, last = [], [1.0]
    for _ in range(DEEPEST):
        last = nlargest(MAX_DRAFT_TOKENS, (chance * own for chance in last for own in (first, second) if own))
        levels.append(last)
    return levels


def gain(first: float, forward: Sequence[float]) -> float:
    """How much faster the best tree is than the best chain, or plain decoding."""
    tree = best_rate(levels_of(first, (1.0 - first) * SECOND), forward)
    return tree / best_rate(levels_of(first, 0.0), forward)


def draw(figure: Figure) -> None:
    """A line for each curve."""
    axes = figure.subplots()
    for colour, name in zip(COLOURS, CURVES, strict=False):
        forward = forward_costs(shipped_curves()[name])
        gains = [100 * (gain(float(first), forward) - 1) for first in FIRST]
        axes.plot(100 * FIRST, gains, color=colour, label=f"{name}: V(8) = {forward[7]:.2f}")
    axes.axhline(0.0, color=INK, linewidth=1.0)
    axes.set_xlabel("% of first choices that are right")
    axes.set_ylabel("% faster than the best chain")
    add_grid(axes, "both")
    axes.legend()


def forward_costs(curve: Curve) -> list[float]:
    """Of a forward with n draft tokens, in plain ones."""
    return [curve.ratio(rows) for rows in range(1, MAX_DRAFT_TOKENS + 2)]


if __name__ == "__main__":
    TARGET.write_bytes(picture(draw, (6.4, 3.6), kind="svg"))
