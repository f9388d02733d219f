"""The static settings that people tune by hand: what `auto` is compared with, and what `--export` takes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.resources import as_file, files

from foredraft.bench.curves import Curve
from foredraft.bench.replay import Progress, ReplayResult, replay
from foredraft.bench.trace import TraceSet, read_traces

SHIPPED_TRACES = "traces.jsonl.gz"


@dataclass(frozen=True, slots=True)
class StaticResult:
    """A static setting on a curve: geometric mean and worst prompt, over plain decoding."""

    speculation: str
    speedup: float
    worst: float


def static_settings() -> Sequence[str]:
    """A grid over the n-gram drafters of llama.cpp and prompt lookup (as in transformers and vLLM), their
    defaults included.
    """
    return tuple(_grid())


def _grid() -> Iterator[str]:
    for matched in (1, 2, 3, 4, 6, 12):
        for drafted in (1, 3, 7, 15, 48):
            yield f"ngram-simple:n={matched},m={drafted}"
    for matched in (3, 6, 12):
        for drafted in (7, 15, 48):
            yield f"ngram-map-k:n={matched},m={drafted}"
            yield f"ngram-map-k4v:n={matched},m={drafted}"
    for matched in (6, 12, 24):
        for drafted in (7, 15, 64):
            yield f"ngram-mod:n={matched},max={drafted},min=0"
    yield "ngram-cache"
    for matched in (1, 2, 3, 4, 6):  # the longest match of at least so many tokens: prompt lookup
        for drafted in (3, 7, 10, 15):
            yield f"suffix:min={matched},max={drafted},min-p=0"


def shipped_traces() -> TraceSet:
    """Recorded answers of the default model to the prompts that ship: `foredraft bench --record FILE
    --temperature 0.7`, since at temperature 0 some of a small model's loop until their limit.
    """
    with as_file(files("foredraft.bench").joinpath(SHIPPED_TRACES)) as path:
        return read_traces(path)


def rank_static(
    curve: Curve, progress: Progress | None = None, traces: TraceSet | None = None
) -> list[StaticResult]:
    """Every static setting replayed on a curve, best first. `progress` counts settings."""
    recorded = traces or shipped_traces()
    settings = static_settings()
    results: list[StaticResult] = []
    for number, setting in enumerate(settings, 1):
        found: ReplayResult = replay(recorded, curve, setting)
        results.append(StaticResult(setting, found.speedup, found.worst.speedup))
        if progress is not None:
            progress(number, len(settings), setting)
    return sorted(results, key=lambda result: result.speedup, reverse=True)
