"""Replaying recorded answers on a cost curve: no model, virtual time.

The engine itself runs, around a model that answers as recorded. What is measured is the policy: the drafts,
what the planner makes of them, and what that costs on the curve. Model-free drafters only: a draft model or a
head cannot be replayed from a target's trace.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import geometric_mean
from typing import Self

from foredraft.bench.charge import charge
from foredraft.bench.curves import Curve
from foredraft.bench.replay_model import ReplayModel
from foredraft.bench.results import loops
from foredraft.bench.trace import Trace, TraceSet
from foredraft.config import AUTO, parse_speculation
from foredraft.engine.engine import Engine
from foredraft.errors import BackendError, ConfigError
from foredraft.types import SamplingParams

Progress = Callable[[int, int, str], None]
"""Called with (traces done, traces in all, id of the last)."""


@dataclass(frozen=True, slots=True)
class ReplayRow:
    """One trace's replay. Costs are in plain rounds (V(1) and the overhead of a round); `attempts` is the
    part of `cost` that attempts to draft took. `looping`: the answer loops.
    """

    id: str
    category: str
    tokens: int
    rounds: int
    drafted: int
    accepted: int
    cost: float
    plain_cost: float
    attempts: float = 0.0
    looping: bool = False

    @property
    def speedup(self) -> float:
        return self.plain_cost / self.cost


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """A setting on a curve, over all traces."""

    speculation: str
    curve: Curve
    rows: Sequence[ReplayRow] = field(default_factory=tuple)

    @property
    def name(self) -> str:
        """What was replayed, for a table."""
        return f"{self.speculation} on {self.curve.name}"

    @property
    def speedup(self) -> float:
        """Geometric mean over the traces."""
        return geometric_mean([row.speedup for row in self.rows])

    @property
    def worst(self) -> ReplayRow:
        return min(self.rows, key=lambda row: row.speedup)

    @property
    def attempts(self) -> float:
        """Share of the time that attempts to draft took."""
        return sum(row.attempts for row in self.rows) / sum(row.cost for row in self.rows)


class Replay:
    """An engine that gives recorded answers again, in virtual time. What it learns from one serves the next.

    A forward takes what the curve says and `overhead_ms` more, drafted or plain; attempts to draft cost what
    the curve says, choosing among drafts where the planner weighs them (`auto`). `trees`: the model verifies
    trees. A context manager. Raises ConfigError for drafters that cannot be replayed, SpeculationStringError.
    """

    def __init__(
        self,
        traces: TraceSet,
        curve: Curve,
        speculation: str = AUTO,
        *,
        overhead_ms: float = 0.0,
        trees: bool = False,
    ) -> None:
        parsed = parse_speculation(speculation)
        if any(stage.name in ("draft-model", "heads") for stage in parsed.stages):
            raise ConfigError(
                f"{speculation!r} drafts with a model or a head, whose drafts cannot be replayed.",
                hint="Measure it with the models themselves: foredraft bench MODEL --speculate SPEC.",
            )
        self._curve, self._overhead_ms = curve, overhead_ms
        self._model = ReplayModel(traces, curve, overhead_ms=overhead_ms, trees=trees)
        self.engine = Engine(self._model, clock=self._model.clock)
        self.engine.set_speculation(parsed)
        self._meter = charge(self.engine, self._model, choosing=parsed.adaptive)

    def answer(self, trace: Trace, curve: Curve | None = None) -> ReplayRow:
        """Give one answer again; `curve`: what its forwards take, if not the usual. Raises BackendError."""
        curve, model = curve or self._curve, self._model
        model.answer_with(trace, curve)
        began, charged = model.seconds, self._meter.seconds
        done = self.engine.generate(list(trace.prompt), self._params(trace), prediction=trace.prediction)
        if done.tokens != trace.output:
            raise BackendError(f"The replay of the trace {trace.id!r} gave another answer than was recorded.")
        round_ms = curve.v1_ms + self._overhead_ms
        return ReplayRow(
            id=trace.id,
            category=trace.category,
            tokens=len(trace.output),
            rounds=done.speculation.rounds,
            drafted=done.timings.draft_n,
            accepted=done.timings.draft_n_accepted,
            cost=1e3 * (model.seconds - began) / round_ms,
            plain_cost=float(len(trace.output) - 1),
            attempts=1e3 * (self._meter.seconds - charged) / round_ms,
            looping=loops(trace.output),
        )

    def _params(self, trace: Trace) -> SamplingParams:
        """An answer that ended by itself was allowed more: its length is not known beforehand."""
        length, ends = len(trace.output), self._model.tokenizer.end_tokens
        if trace.output[-1] in ends and not ends.intersection(trace.output[:-1]):
            return SamplingParams(max_tokens=max(length, self._model.longest_answer))
        return SamplingParams(max_tokens=length, ignore_eos=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.engine.close()


def replay(
    traces: TraceSet, curve: Curve, speculation: str = AUTO, *, progress: Progress | None = None
) -> ReplayResult:
    """Replay all traces one after the other. Raises ConfigError if there is nothing to replay, what `Replay`
    raises.
    """
    usable = usable_traces(traces)
    rows: list[ReplayRow] = []
    with Replay(traces, curve, speculation) as again:
        for number, trace in enumerate(usable, 1):
            rows.append(again.answer(trace))
            if progress is not None:
                progress(number, len(usable), trace.id)
    return ReplayResult(speculation, curve, rows)


def usable_traces(traces: TraceSet) -> list[Trace]:
    """Those of which there is something to decode. Raises ConfigError if there are none."""
    usable = [trace for trace in traces.traces if len(trace.output) > 1 and trace.prompt]
    if not usable:
        raise ConfigError("No trace has more than one token of output.")
    return usable
