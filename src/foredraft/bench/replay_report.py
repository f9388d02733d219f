"""The report of replays: speedups over plain decoding, and what attempts to draft cost."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from foredraft.bench.replay import ReplayResult
from foredraft.bench.report import Report
from foredraft.bench.results import Score, loop_notes
from foredraft.bench.trace import TraceSet
from foredraft.config import parse_speculation
from foredraft.engine.speculation import AUTO_STAGES


def replay_report(results: Sequence[ReplayResult], *, source: str, traces: TraceSet) -> Report:
    """The report of replays of the `traces` from `source`."""
    found = [score for result in results for score in replay_scores(result)]
    about = {
        "traces": f"{len(traces.traces)} answers of {traces.model} ({source})",
        "curves": "; ".join(f"{result.curve.name}: {result.curve.about}" for result in results),
        "attempts charged": "; ".join(charged(results)),
    }
    return Report(
        title="Replay",
        baseline="plain decoding",
        about=about,
        scores=found,
        facts={result.name: {"attempts": f"{result.attempts:.1%} of the time"} for result in results},
        notes=loop_notes(found),
    )


def replay_scores(result: ReplayResult) -> list[Score]:
    """The traces of a replay, as scores of a report."""
    return [
        Score(
            prompt=row.id,
            category=row.category,
            setting=result.name,
            speedup=row.speedup,
            tokens=row.tokens,
            rounds=row.rounds,
            drafted=row.drafted,
            accepted=row.accepted,
            looping=row.looping,
        )
        for row in result.rows
    ]


def charged(results: Sequence[ReplayResult]) -> Iterable[str]:
    """What was charged for attempts of the drafters that were replayed, curve by curve."""
    settings = [parse_speculation(result.speculation) for result in results]
    adaptive = any(setting.adaptive for setting in settings)
    stages = [stage for setting in settings for stage in setting.stages]
    names = dict.fromkeys(stage.name for stage in (*stages, *(AUTO_STAGES if adaptive else ())))
    for name, curve in {result.curve.name: result.curve for result in results}.items():
        yield f"{name}: {curve.attempts.describe(names, choosing=adaptive)}"
