"""The static settings that people tune by hand: `auto` is compared with them, `lab.export` takes the best."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from foredraft.bench.curves import Curve
from foredraft.bench.replay import ReplayResult, replay
from foredraft.bench.trace import TraceSet


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


def rank_static(traces: TraceSet, curve: Curve) -> list[ReplayResult]:
    """Every static setting replayed on a curve, best first."""
    results = [replay(traces, curve, setting) for setting in static_settings()]
    return sorted(results, key=lambda result: result.speedup, reverse=True)
