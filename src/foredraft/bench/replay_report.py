"""The report of replays: speedups over plain decoding, and how far they are from the bounds."""

from __future__ import annotations

from collections.abc import Sequence

from foredraft.bench.replay import ReplayResult
from foredraft.bench.report import Report
from foredraft.bench.results import Score, loop_notes
from foredraft.bench.trace import TraceSet
from foredraft.config import parse_speculation
from foredraft.engine.assembly import AUTO_STAGES
from foredraft.planner.tables.reliability import Bin


def replay_report(
    results: Sequence[ReplayResult], *, source: str, traces: TraceSet, overhead_ms: float
) -> Report:
    """The report of replays: speedups over plain decoding, and how far they are from the bounds."""
    scores: list[Score] = []
    facts: dict[str, dict[str, str]] = {}
    reliability: dict[str, Sequence[Bin]] = {}
    for result in results:
        name = result.name
        scores += [
            Score(
                prompt=row.id,
                category=row.category,
                setting=name,
                speedup=row.speedup,
                tokens=row.tokens,
                rounds=row.rounds,
                drafted=row.drafted,
                accepted=row.accepted,
                looping=row.looping,
            )
            for row in result.rows
        ]
        facts[name] = {
            "hindsight bound": f"{result.hindsight:.3f}",
            "share of it": f"{result.share:.1%}",
            "forwards alone": f"{result.forwards_share:.1%}",
            "clairvoyant": f"{result.clairvoyant:.2f}",
            "asking": f"{result.asking:.1%}",
        }
        if result.calibration_error is not None:
            facts[name]["calibration error"] = f"{result.calibration_error:.3f}"
            reliability[name] = result.reliability
    curves = {result.curve.name: result.curve for result in results}.values()
    about = {
        "traces": f"{len(traces.traces)} answers of {traces.model} ({source})",
        "curves": "; ".join(f"{curve.name}: {curve.about}" for curve in curves),
        "overhead": f"{overhead_ms:g} ms a round",
        "asking charged": _charged(results),
    }
    return Report(
        title="Replay",
        baseline="plain decoding",
        about=about,
        scores=scores,
        facts=facts,
        reliability=reliability,
        notes=loop_notes(scores),
    )


def _charged(results: Sequence[ReplayResult]) -> str:
    """What asking the drafters that were replayed took, curve by curve."""
    settings = [parse_speculation(result.speculation) for result in results]
    adaptive = any(setting.adaptive for setting in settings)
    stages = [stage for setting in settings for stage in setting.stages]
    names = dict.fromkeys(stage.name for stage in (*stages, *(AUTO_STAGES if adaptive else ())))
    curves = {result.curve.name: result.curve for result in results}.values()
    return "; ".join(f"{curve.name}: {curve.asking.describe(names, choosing=adaptive)}" for curve in curves)
