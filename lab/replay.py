"""Any setting on any cost curve, beside the bounds: recorded answers in virtual time, without a model.

    python -m lab.replay shipped --curve steep --speculate auto --speculate "suffix:max=8" --static

Of each setting: the geometric mean of the speedups over plain decoding, the worst answer, the hindsight bound
(the best draft of the request's history each time, its length chosen knowing the future) and the share of it
that was reached, with attempts and with the forwards alone, the clairvoyant bound, the share of the time that
attempts took, and how far the planner's probabilities were from what came out. `--static` adds the best of a
grid of static settings. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import geometric_mean

from foredraft.bench.curves import Curve, find_curves
from foredraft.bench.replay import Replay, ReplayResult, ReplayRow, usable_traces
from foredraft.bench.trace import Trace, TraceSet, read_traces, shipped_traces
from foredraft.config import AUTO
from lab.bounds import clairvoyant_cost, hindsight_cost
from lab.calibration import Calibration
from lab.grid import rank_static
from lab.live import run

SHIPPED = "shipped"


@dataclass(frozen=True, slots=True)
class Bounded:
    """A replay, and for each of its rows the costs of both bounds, in plain rounds."""

    result: ReplayResult
    hindsight_costs: Sequence[float]
    clairvoyant_costs: Sequence[float]
    calibration: Calibration

    @property
    def hindsight(self) -> float:
        """A speedup: geometric mean."""
        return self._bound(self.hindsight_costs)

    @property
    def clairvoyant(self) -> float:
        """A speedup: geometric mean."""
        return self._bound(self.clairvoyant_costs)

    @property
    def share(self) -> float:
        """Of the hindsight bound."""
        return self.result.speedup / self.hindsight

    @property
    def forwards_share(self) -> float:
        """Of the hindsight bound, with the forwards alone: the bound makes no attempts."""
        rows = self.result.rows
        return geometric_mean([row.plain_cost / (row.cost - row.attempts) for row in rows]) / self.hindsight

    def _bound(self, costs: Sequence[float]) -> float:
        pairs = zip(self.result.rows, costs, strict=True)
        return geometric_mean([row.plain_cost / cost for row, cost in pairs])


def bounded_replay(
    traces: TraceSet,
    curve: Curve,
    speculation: str = AUTO,
    *,
    overhead_ms: float = 0.0,
    trees: bool = False,
    curve_for: Callable[[Trace], Curve] | None = None,
) -> Bounded:
    """Replay all traces one after the other. `curve_for` gives the curve of one trace, where that is not
    `curve` for all. Raises what `Replay` raises.
    """
    rows: list[ReplayRow] = []
    real: list[Curve] = []
    usable = usable_traces(traces)
    calibration = Calibration()
    with Replay(traces, curve, speculation, overhead_ms=overhead_ms, trees=trees) as again:
        again.engine.decisions.watch(calibration.add)
        for trace in usable:
            its_own = curve_for(trace) if curve_for else curve
            rows.append(again.answer(trace, its_own))
            real.append(with_overhead(its_own, overhead_ms))
    return Bounded(
        ReplayResult(speculation, curve, rows),
        [hindsight_cost(*pair) for pair in zip(usable, real, strict=True)],
        [clairvoyant_cost(*pair) for pair in zip(usable, real, strict=True)],
        calibration,
    )


def with_overhead(curve: Curve, overhead_ms: float) -> Curve:
    """The curve of whole rounds. What a change of size takes is left out: a bound may do without."""
    round_ms = curve.v1_ms + overhead_ms
    points = {n: (curve.after(n, n) * curve.v1_ms + overhead_ms) / round_ms for n in curve.points}
    return Curve(curve.name, points, round_ms)


def main() -> None:
    """Print a line for each setting on each curve, and the JSON line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("traces", nargs="?", default=SHIPPED, help="a file of traces, or 'shipped'")
    parser.add_argument("--curve", action="append", help="one that ships, or a JSON file; repeatable")
    parser.add_argument("--speculate", action="append", metavar="SPEC", help="repeatable")
    parser.add_argument("--static", action="store_true", help="also the best static setting on each curve")
    parser.add_argument("--trees", action="store_true", help="the model verifies trees")
    parser.add_argument("--overhead", type=float, default=0.0, help="milliseconds of each round")
    args = parser.parse_args()
    traces = shipped_traces() if args.traces == SHIPPED else read_traces(Path(args.traces))
    found: dict[str, dict[str, float | None]] = {}
    print(
        f"{'':<36}{'speedup':>8}{'worst':>7}{'bound':>7}{'share':>7}{'forwards':>9}{'clairv.':>8}"
        f"{'attempts':>9}{'calibr.':>8}"
    )
    for curve in (one for name in args.curve or ["steep", "flat", "gpu"] for one in find_curves(name)):
        settings = list(args.speculate or [AUTO])
        if args.static:
            settings.append(rank_static(traces, curve)[0].speculation)
        for setting in settings:
            one = bounded_replay(traces, curve, setting, overhead_ms=args.overhead, trees=args.trees)
            found[one.result.name] = figures = as_figures(one)
            print(line(one.result.name, figures), flush=True)
    print(json.dumps(found))


def as_figures(one: Bounded) -> dict[str, float | None]:
    """What there is to say of a replay."""
    return {
        "speedup": one.result.speedup,
        "worst": one.result.worst.speedup,
        "hindsight": one.hindsight,
        "share": one.share,
        "forwards_share": one.forwards_share,
        "clairvoyant": one.clairvoyant,
        "attempts": one.result.attempts,
        "calibration_error": one.calibration.error,
    }


def line(name: str, figures: dict[str, float | None]) -> str:
    """A line of the table."""
    widths = zip(figures.values(), (8, 7, 7, 7, 9, 8, 9, 8), strict=True)
    return f"{name:<36}" + "".join(
        f"{'–' if value is None else format(value, '.3f'):>{width}}" for value, width in widths
    )


if __name__ == "__main__":
    run(main)
