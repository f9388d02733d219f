"""Replaying recorded outputs with any speculation setting on any cost curve: no model, virtual time.

The engine itself runs, around a model that answers as recorded. What is measured is the policy: the drafts,
what the planner makes of them, and what that costs on the curve. Model-free drafters only: a draft model
cannot be replayed from a target's trace.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import geometric_mean

from foredraft.bench.curves import Curve
from foredraft.bench.hindsight import clairvoyant_cost, hindsight_cost
from foredraft.bench.replay_model import ReplayModel
from foredraft.bench.results import loops
from foredraft.bench.toll import Toll, charge
from foredraft.bench.trace import Trace, TraceSet
from foredraft.config import parse_speculation
from foredraft.engine.engine import Engine
from foredraft.errors import BackendError, ConfigError
from foredraft.planner.adaptive import AdaptivePlanner
from foredraft.planner.tables.reliability import Bin
from foredraft.types import Completion, SamplingParams

Progress = Callable[[int, int, str], None]
"""Called with (traces done, traces in all, id of the last)."""


@dataclass(frozen=True, slots=True)
class ReplayRow:
    """One trace's replay. Costs are in plain rounds (V(1) and the overhead of a round); `asking` is the part
    of `cost` that went into asking drafters, which the bounds do without. `looping`: the answer loops.
    """

    id: str
    category: str
    tokens: int
    rounds: int
    drafted: int
    accepted: int
    cost: float
    plain_cost: float
    hindsight_cost: float
    clairvoyant_cost: float
    asking: float = 0.0
    looping: bool = False

    @property
    def speedup(self) -> float:
        return self.plain_cost / self.cost

    @property
    def hindsight(self) -> float:
        return self.plain_cost / self.hindsight_cost


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """A setting on a curve, over all traces. How reliable the planner's estimates were is known of `auto`
    only. `trees`: drafts could be trees.
    """

    speculation: str
    curve: Curve
    rows: Sequence[ReplayRow] = field(default_factory=tuple)
    reliability: Sequence[Bin] = ()
    calibration_error: float | None = None
    trees: bool = False

    @property
    def name(self) -> str:
        """What was replayed, for a table."""
        return f"{self.speculation} on {self.curve.name}{' with trees' if self.trees else ''}"

    @property
    def speedup(self) -> float:
        """Geometric mean over the traces."""
        return geometric_mean([row.speedup for row in self.rows])

    @property
    def worst(self) -> ReplayRow:
        return min(self.rows, key=lambda row: row.speedup)

    @property
    def hindsight(self) -> float:
        """The hindsight bound: a speedup, geometric mean."""
        return geometric_mean([row.hindsight for row in self.rows])

    @property
    def clairvoyant(self) -> float:
        return geometric_mean([row.plain_cost / row.clairvoyant_cost for row in self.rows])

    @property
    def share(self) -> float:
        """Of the hindsight bound."""
        return self.speedup / self.hindsight

    @property
    def forwards_share(self) -> float:
        """Of the hindsight bound, with the forwards alone: the bound asks nobody."""
        forwards = [row.plain_cost / (row.cost - row.asking) for row in self.rows]
        return geometric_mean(forwards) / self.hindsight

    @property
    def asking(self) -> float:
        """Share of the time that went into asking drafters."""
        return sum(row.asking for row in self.rows) / sum(row.cost for row in self.rows)

    def categories(self) -> dict[str, list[ReplayRow]]:
        """The rows of each category, in the order in which they came."""
        groups: dict[str, list[ReplayRow]] = {}
        for row in self.rows:
            groups.setdefault(row.category, []).append(row)
        return groups


def needs_a_model(speculation: str) -> bool:
    """Whether a setting drafts with a model of its own, whose drafts no trace holds."""
    return any(stage.name == "draft-model" for stage in parse_speculation(speculation).stages)


def check_replayable(speculation: str) -> None:
    """Raises ConfigError for a setting that cannot be replayed, SpeculationStringError."""
    if needs_a_model(speculation):
        raise ConfigError(
            f"{speculation!r} drafts with a model, whose drafts cannot be replayed.",
            hint="Measure it with the models themselves: foredraft bench MODEL --speculate SPEC.",
        )


def replay(
    traces: TraceSet,
    curve: Curve,
    speculation: str,
    *,
    overhead_ms: float = 0.0,
    trees: bool = False,
    curve_for: Callable[[Trace], Curve] | None = None,
    progress: Progress | None = None,
) -> ReplayResult:
    """Replay all traces one after the other; what the planner learns from one it uses in the next.

    `overhead_ms` is added to every round, drafted or plain. `trees`: the model verifies trees.
    `curve_for` says what the forwards of one trace cost, where that is not `curve` for all. Asking drafters
    takes what the curve says; choosing among drafts is charged where the planner weighs them (`auto`).
    Raises ConfigError if there is nothing to replay or `check_replayable` does, SpeculationStringError.
    """
    check_replayable(speculation)
    usable = [trace for trace in traces.traces if len(trace.output) > 1 and trace.prompt]
    if not usable:
        raise ConfigError("No trace has more than one token of output.")
    model = ReplayModel(traces, curve, overhead_ms=overhead_ms, trees=trees)
    rows: list[ReplayRow] = []
    with Engine(model, clock=model.clock) as engine:
        engine.set_speculation(speculation)
        toll = charge(engine, model)
        for number, trace in enumerate(usable, 1):
            its_own = curve_for(trace) if curve_for is not None else curve
            model.answer_with(trace, its_own)
            rows.append(_replay_one(engine, toll, trace, its_own, overhead_ms))
            if progress is not None:
                progress(number, len(usable), trace.id)
        planner = engine.planner
    if not isinstance(planner, AdaptivePlanner):
        return ReplayResult(speculation, curve, rows, trees=trees)
    table = planner.reliability
    return ReplayResult(speculation, curve, rows, table.bins(), table.error, trees)


def _params(trace: Trace, model: ReplayModel) -> SamplingParams:
    """An answer that ended by itself was allowed more: how long it becomes is not known beforehand."""
    length, ends = len(trace.output), model.tokenizer.end_tokens
    if trace.output[-1] in ends and not ends.intersection(trace.output[:-1]):
        return SamplingParams(max_tokens=max(length, model.longest_answer))
    return SamplingParams(max_tokens=length, ignore_eos=True)


def _replay_one(engine: Engine, toll: Toll, trace: Trace, curve: Curve, overhead_ms: float) -> ReplayRow:
    model = toll.model
    began, asked = model.seconds, toll.seconds
    params = _params(trace, model)
    completion: Completion = engine.generate(list(trace.prompt), params, prediction=trace.prediction)
    if completion.tokens != trace.output:
        raise BackendError(f"The replay of the trace {trace.id!r} gave another answer than was recorded.")
    round_ms = curve.v1_ms + overhead_ms
    # Overhead makes every round dearer by the same: it belongs into the bounds as well. What a change of size
    # takes does not, and asking does not: one may do without.
    real = Curve(
        curve.name,
        {n: (curve.after(n, n) * curve.v1_ms + overhead_ms) / round_ms for n in curve.points},
        round_ms,
    )
    return ReplayRow(
        id=trace.id,
        category=trace.category,
        tokens=len(trace.output),
        rounds=completion.speculation.rounds,
        drafted=completion.timings.draft_n,
        accepted=completion.timings.draft_n_accepted,
        cost=1e3 * (model.seconds - began) / round_ms,
        plain_cost=float(len(trace.output) - 1),
        hindsight_cost=hindsight_cost(trace, real),
        clairvoyant_cost=clairvoyant_cost(trace, real),
        asking=1e3 * (toll.seconds - asked) / round_ms,
        looping=loops(trace.output),
    )
