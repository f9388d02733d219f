"""The plot of a soak: memory and the latency of /health over time, as SVG text."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from foredraft.bench.plots import COLOURS, INK
from server_common import percentile

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MIB = 1 << 20
BIN_SECONDS = 10.0
SIZE = (10.2, 5.6)
TICKS_MS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)


def binned(
    began: float, samples: Sequence[tuple[float, float]], percent: float, seconds: float = BIN_SECONDS
) -> list[tuple[float, float]]:
    """(minutes since the beginning, percentile of the samples) of every `seconds`, at their middle."""
    bins: dict[int, list[float]] = {}
    for at, value in samples:
        bins.setdefault(int((at - began) // seconds), []).append(value)
    return [
        ((number + 0.5) * seconds / 60, found)
        for number, values in sorted(bins.items())
        if (found := percentile(values, percent)) is not None
    ]


def soak_plot(
    began: float,
    memory: Sequence[tuple[float, int]],
    health: Sequence[tuple[float, float]],
    *,
    warm_up: float,
    limit_ms: float,
) -> str:
    """Times are seconds, memory is bytes, latencies are milliseconds; `warm_up` is the part that does not
    count for memory.
    """
    import matplotlib
    from matplotlib.figure import Figure

    settings: dict[Any, Any] = {"svg.fonttype": "none", "svg.hashsalt": "foredraft", "axes.spines.top": False,
                "axes.spines.right": False, "legend.frameon": False}  # fmt: skip
    with matplotlib.rc_context(settings):
        figure = Figure(figsize=SIZE, facecolor="white", layout="constrained")
        upper, lower = figure.subplots(2, 1, sharex=True)
        _memory_axes(upper, began, memory, warm_up)
        _health_axes(lower, began, health, limit_ms)
        text = io.StringIO()
        figure.savefig(text, format="svg", metadata={"Date": None})
    return text.getvalue()


def _memory_axes(axes: Axes, began: float, memory: Sequence[tuple[float, int]], warm_up: float) -> None:
    minutes = [(at - began) / 60 for at, _ in memory]
    sizes = [size / MIB for _, size in memory]
    axes.plot(minutes, sizes, color=COLOURS[0], label="resident memory of the server")
    steady = [size / MIB for at, size in memory if at >= began + warm_up]
    if steady:
        axes.axhspan(min(steady), 1.05 * min(steady), color=COLOURS[2], alpha=0.15,
                     label="5 % above the lowest after the warm-up")  # fmt: skip
    axes.axvline(warm_up / 60, color=INK, linewidth=0.9, linestyle="--", label="end of the warm-up")
    axes.set_ylabel("MiB")
    axes.set_ylim(0, 1.25 * max(sizes, default=1.0))
    axes.legend(loc="lower right")


def _health_axes(axes: Axes, began: float, health: Sequence[tuple[float, float]], limit_ms: float) -> None:
    for percent, colour in ((50, COLOURS[0]), (99, COLOURS[1])):
        points = binned(began, health, percent)
        axes.plot([x for x, _ in points], [y for _, y in points], color=colour, label=f"/health, p{percent}")
    axes.axhline(limit_ms, color=COLOURS[3], linewidth=0.9, linestyle="--", label=f"{limit_ms:.0f} ms")
    axes.set_yscale("log")
    axes.set_yticks(TICKS_MS, [str(tick) for tick in TICKS_MS])
    axes.minorticks_off()
    axes.set_ylim(TICKS_MS[0] / 2, max(2 * limit_ms, 1.5 * max((ms for _, ms in health), default=0.0)))
    axes.set_ylabel(f"ms, of {BIN_SECONDS:.0f} s each")
    axes.set_xlabel("minutes")
    axes.set_xlim(left=0)
    axes.legend(loc="upper right")
