"""What a live run should have gained: its own answers, replayed on the cost curve of the same run.

    python -m lab.expectation MODEL --speculate auto

A replay knows nothing of cold caches and waiting threads. So what a live run falls short of it is lost in the
engine, and what both fall short of the hindsight bound is the policy's. Attempts to draft cost in the replay
what they cost in the run, as the engine's decisions tell (`Attempts`), and a plain round what it took beside
its forward.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, geometric_mean

from foredraft.bench.attempt_cost import FURTHER, AttemptCost
from foredraft.bench.cost_measure import QUICK, measure_profile
from foredraft.bench.curves import Curve
from foredraft.bench.record import trace_set
from foredraft.bench.results import Row, Sample, scores
from foredraft.bench.sides import EngineSide
from foredraft.bench.trace import Trace
from foredraft.config import AUTO, OFF
from foredraft.engine.engine import Engine
from foredraft.planner.records import RoundRecord
from lab.live import arguments, cases, engines, measured, run
from lab.replay import bounded_replay

DEPTHS = (768, 1536, 3072)
"""Tokens of context at which V(n) is measured too, where answers are so deep."""


class Attempts:
    """What attempts to draft cost in rounds that were decided. A round that is seen twice counts once."""

    def __init__(self) -> None:
        self._last = 0
        self._draft_ms: defaultdict[str, float] = defaultdict(float)
        self._drafted: defaultdict[str, float] = defaultdict(float)  # attempts, in those for one request
        self._plan_ms: dict[bool, list[float]] = {True: [], False: []}  # with candidates, and without
        self._choices: list[int] = []

    def see(self, decisions: Iterable[RoundRecord]) -> None:
        """The last rounds of an engine, oldest first."""
        for decision in decisions:
            if decision.number > self._last:
                self._last = decision.number
                self._add(decision)

    def _add(self, decision: RoundRecord) -> None:
        for name, ms in decision.draft_ms.items():
            requests = sum(name in choice.asked for choice in decision.choices)
            self._draft_ms[name] += ms
            self._drafted[name] += 1.0 + FURTHER * (requests - 1)
        chosen = any(choice.candidates for choice in decision.choices)
        self._plan_ms[chosen].append(decision.plan_ms)

    def cost(self, plain_ms: float) -> AttemptCost:
        """As a replay charges it. `plain_ms` of a round go by before the forward without speculation."""
        drafters = {name: ms / self._drafted[name] for name, ms in self._draft_ms.items()}
        without = fmean(self._plan_ms[False] or [plain_ms])
        choosing = fmean(self._plan_ms[True] or [without]) - without
        return AttemptCost(drafters, 0.0, max(0.0, choosing), max(0.0, without - plain_ms))


@dataclass(frozen=True, slots=True)
class Expectation:
    """Speedups of a setting, geometric means: of the run, of its replay, and of the hindsight bound."""

    live: float
    replayed: float
    hindsight: float


def expectation(
    rows: Sequence[Row], setting: str, engine: Engine, curves: Mapping[int, Curve], attempts: Attempts
) -> Expectation | None:
    """What `setting` should have gained in a run; None where no answer can be replayed.

    `rows` are the run's, those of `OFF` by `engine`; `curves` were measured in it, by depth: an answer's
    forwards take what they do in its middle. Of the answers the tokens are recorded, and not the runners-up
    that `recycle` could use.
    """
    plain = {row.prompt: row for row in reversed(rows) if row.setting == OFF}
    live = {
        score.prompt: score.speedup
        for score in scores(rows, OFF)
        if score.setting == setting and score.speedup
    }
    samples = {name: plain[name].sample for name in live}
    traces = [Trace(name, plain[name].category, it.prompt, it.tokens) for name, it in samples.items()]
    if not traces:
        return None
    rounds = sum(sample.count - 1 for sample in samples.values())
    spent = {part: _spent(samples.values(), part) / rounds for part in ("sample", "other")}
    cost = attempts.cost(spent["other"])

    def its_curve(trace: Trace) -> Curve:
        depth = len(trace.prompt) + len(trace.output) // 2
        return replace(between(curves, depth), attempt_ms=cost)

    found = bounded_replay(
        trace_set(engine, traces),
        its_curve(traces[0]),
        setting,
        overhead_ms=sum(spent.values()),
        trees=engine.model.capabilities.trees,
        curve_for=its_curve,
    )
    return Expectation(geometric_mean(list(live.values())), found.result.speedup, found.hindsight)


def _spent(samples: Iterable[Sample], part: str) -> float:
    return sum(sample.spent_ms.get(part, 0.0) for sample in samples)


def between(curves: Mapping[int, Curve], depth: float) -> Curve:
    """V(n) at a depth of context in tokens, linear between those measured, as the nearest beyond them."""
    known = sorted(curves)
    i = min(max(bisect_right(known, depth), 1), max(len(known) - 1, 1))
    low, high = known[i - 1], known[min(i, len(known) - 1)]
    share = min(max((depth - low) / (high - low), 0.0), 1.0) if high > low else 0.0
    below, above = ({n: it.ratio(n) * it.v1_ms for n in it.points} for it in (curves[low], curves[high]))
    ms = {n: below[n] + share * (above[n] - below[n]) for n in below}
    return Curve("this run", {n: value / ms[1] for n, value in ms.items()}, ms[1], resize=curves[low].resize)


def measured_curves(engine: Engine, deepest: int) -> dict[int, Curve]:
    """V(n) by depth, in the machine's state of now, to about `deepest` tokens. The engine is of no use
    afterwards. Raises CapacityError where the context is too short to measure in.
    """
    depths = [*QUICK.depths, *DEPTHS]
    needed = [depth for i, depth in enumerate(depths) if not i or deepest > depths[i - 1]]
    profile = measure_profile(engine.model, replace(QUICK, depths=needed)).profile
    return {
        depth: Curve(
            "this run", {n: ms / sizes[1] for n, ms in sizes.items()}, sizes[1], resize=profile.resize or 0.0
        )
        for depth, sizes in profile.curve.items()
    }


def main() -> None:
    """Measure, replay, and print a line for each setting and the JSON line."""
    parser = arguments(__doc__)
    parser.add_argument("--speculate", action="append", metavar="SPEC", help="repeatable")
    args = parser.parse_args()
    settings = list(args.speculate or [AUTO])
    attempts = {setting: Attempts() for setting in settings}
    with engines(args, [OFF, *settings]) as loaded:
        rows: list[Row] = []
        for row in measured(args, [EngineSide(*one) for one in loaded.items()], cases(args)):
            rows.append(row)
            if row.setting in attempts:
                attempts[row.setting].see(loaded[row.setting].decisions.latest())
        deepest = max(len(row.sample.prompt) + len(row.sample.tokens) // 2 for row in rows)
        curves = measured_curves(loaded[OFF], deepest)
        found = {
            setting: expectation(rows, setting, loaded[OFF], curves, attempts[setting])
            for setting in settings
        }
    for setting, it in found.items():
        if it:
            print(
                f"{setting}: {it.live:.3f}, {it.live / it.replayed:.0%} of the {it.replayed:.3f} of its "
                f"replay; hindsight bound {it.hindsight:.3f}"
            )
    print(
        json.dumps(
            {
                setting: it and {"live": it.live, "replayed": it.replayed, "hindsight": it.hindsight}
                for setting, it in found.items()
            }
        )
    )


if __name__ == "__main__":
    run(main)
