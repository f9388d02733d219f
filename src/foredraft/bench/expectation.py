"""What a live run should have gained: its own answers, replayed on the cost curve of the same run.

A replay knows nothing of caches that are cold and threads that wait. So what a live run falls short of it is
what the engine loses, and what both fall short of is the policy's. Asking drafters takes what it took in the
run: as `auto`'s planner has measured it, with what its rounds took before their forward beyond those of plain
decoding, and of other settings what their rounds took beyond plain ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import geometric_mean
from types import MappingProxyType

from foredraft.bench.asking_cost import AskingCost
from foredraft.bench.curves import Curve, Curves, between
from foredraft.bench.record import trace_set
from foredraft.bench.replay import needs_a_model, replay
from foredraft.bench.results import Row, Sample, scores
from foredraft.bench.trace import Trace
from foredraft.config import parse_speculation
from foredraft.engine.engine import Engine
from foredraft.planner.adaptive import AdaptivePlanner
from foredraft.protocols import Planner

FACTS = ("replayed", "live ÷ replayed", "hindsight bound")

_NAME = "this run"

_NOBODY: Mapping[str, Planner] = MappingProxyType({})


def deepest(rows: Sequence[Row]) -> int:
    """Tokens in the KV cache in the middle of the longest answer: as deep as curves are needed for `rows`."""
    return max((_depth(row.sample.prompt, row.sample.tokens) for row in rows), default=0)


def expectations(
    rows: Sequence[Row],
    engine: Engine,
    curves: Curves,
    settings: Sequence[str],
    baseline: str,
    *,
    planners: Mapping[str, Planner] = _NOBODY,
) -> dict[str, dict[str, str]]:
    """`FACTS` by setting, as far as it can be replayed, which drafts of another model cannot be.

    `rows` are a live run's, `baseline`'s those of plain decoding by `engine`; `curves` were measured in that
    run: an answer's forwards take what they do in its middle. Answers too short to have a rate are left out.
    What is recorded of the answers are their tokens: the runners-up, which `recycle` could use, are not.
    `planners` are those of the settings, as the run left them.
    """
    plain = {row.prompt: row for row in reversed(rows) if row.setting == baseline}
    found = scores(rows, baseline)
    facts: dict[str, dict[str, str]] = {}
    for setting in settings if any(len(curve) > 1 for curve in curves.by_depth.values()) else ():
        live = {score.prompt: score.speedup for score in found if score.setting == setting and score.speedup}
        traces = [
            Trace(name, plain[name].category, sample.prompt, sample.tokens)
            for name in live
            if (sample := plain[name].sample).prompt and sample.tokens
        ]
        if not traces or needs_a_model(setting):
            continue
        samples = [plain[trace.id].sample for trace in traces]
        overhead_ms = _overhead_ms(samples)
        asking = measured_asking(planners[setting], samples) if setting in planners else None
        if asking is None:
            asking = _beyond_plain(rows, setting, overhead_ms)

        def its_curve(trace: Trace, asking: AskingCost | None = asking) -> Curve:
            return replace(_curve(trace, curves), asking_ms=asking)

        result = replay(
            trace_set(engine, traces),
            its_curve(traces[0]),
            setting,
            overhead_ms=overhead_ms,
            trees=engine.model.capabilities.trees,
            curve_for=its_curve,
        )
        speedup = geometric_mean([value for value in live.values() if value])
        figures = (f"{result.speedup:.2f}", f"{speedup / result.speedup:.0%}", f"{result.hindsight:.2f}")
        facts[setting] = dict(zip(FACTS, figures, strict=True))
    return facts


def measured_asking(planner: Planner, plain: Sequence[Sample] = ()) -> AskingCost | None:
    """What asking took as a planner knows it; None if it does not. A round without a question is charged with
    what it took before its forward beyond `plain` ones, which are not charged if there are none.
    """
    if not isinstance(planner, AdaptivePlanner) or not planner.asking_ms:
        return None
    rounds = sum(sample.count - 1 for sample in plain)
    before_ms, forward_ms = (sum(it.spent_ms.get(part, 0.0) for it in plain) for part in ("other", "verify"))
    resting_ms = max(0.0, planner.resting_share * forward_ms - before_ms) / rounds if rounds else 0.0
    return AskingCost(planner.asking_ms, choosing=planner.choosing_ms, resting=resting_ms)


def _beyond_plain(rows: Sequence[Row], setting: str, overhead_ms: float) -> AskingCost | None:
    """What the rounds of a setting that asks in each of them took beside their forwards and beyond
    `overhead_ms`, shared evenly by its drafters; None for one that does not, and where it is not known.
    """
    speculation = parse_speculation(setting)
    samples = [row.sample for row in rows if row.setting == setting and row.sample.spent_ms]
    rounds = sum(sample.rounds for sample in samples)
    if speculation.adaptive or not speculation.stages or not rounds:
        return None
    spent = sum(_besides(sample) for sample in samples) / rounds
    return AskingCost(other=max(0.0, spent - overhead_ms) / len(speculation.stages))


def _curve(trace: Trace, curves: Curves) -> Curve:
    return between(curves, _depth(trace.prompt, trace.output), _NAME)


def _depth(prompt: Sequence[int], output: Sequence[int]) -> int:
    return len(prompt) + len(output) // 2


def _overhead_ms(samples: Sequence[Sample]) -> float:
    """What a plain round took besides its forward."""
    rounds = sum(sample.count - 1 for sample in samples)
    return sum(map(_besides, samples)) / rounds if rounds else 0.0


def _besides(sample: Sample) -> float:
    """Milliseconds of decoding that were spent besides the forwards."""
    return sum(ms for part, ms in sample.spent_ms.items() if part != "verify")
