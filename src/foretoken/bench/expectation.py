"""What a live run should have gained: its own answers, replayed on the cost curve of the same run.

A replay knows nothing of caches that are cold, threads that wait, or drafting that takes time. So what a live
run falls short of it is what the engine loses, and what both fall short of is the policy's.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import geometric_mean

from foretoken.bench.curves import Curve, Curves, between
from foretoken.bench.record import trace_set
from foretoken.bench.replay import needs_a_model, replay
from foretoken.bench.results import Row, Sample, scores
from foretoken.bench.trace import Trace
from foretoken.engine.engine import Engine

FACTS = ("replayed", "live ÷ replayed", "hindsight bound")

_NAME = "this run"


def deepest(rows: Sequence[Row]) -> int:
    """Tokens in the KV cache in the middle of the longest answer: as deep as curves are needed for `rows`."""
    return max((_depth(row.sample.prompt, row.sample.tokens) for row in rows), default=0)


def expectations(
    rows: Sequence[Row],
    engine: Engine,
    curves: Curves,
    settings: Sequence[str],
    baseline: str,
) -> dict[str, dict[str, str]]:
    """`FACTS` by setting, as far as it can be replayed, which drafts of another model cannot be.

    `rows` are a live run's, `baseline`'s those of plain decoding by `engine`; `curves` were measured in that
    run: an answer's forwards take what they do in its middle. Answers too short to have a rate are left out.
    What is recorded of the answers are their tokens: the runners-up, which `recycle` could use, are not.
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
        result = replay(
            trace_set(engine, traces),
            _curve(traces[0], curves),
            setting,
            overhead_ms=_overhead_ms([plain[trace.id].sample for trace in traces]),
            trees=engine.model.capabilities.trees,
            curve_for=lambda trace: _curve(trace, curves),
        )
        speedup = geometric_mean([value for value in live.values() if value])
        figures = (f"{result.speedup:.2f}", f"{speedup / result.speedup:.0%}", f"{result.hindsight:.2f}")
        facts[setting] = dict(zip(FACTS, figures, strict=True))
    return facts


def _curve(trace: Trace, curves: Curves) -> Curve:
    return between(curves, _depth(trace.prompt, trace.output), _NAME)


def _depth(prompt: Sequence[int], output: Sequence[int]) -> int:
    return len(prompt) + len(output) // 2


def _overhead_ms(samples: Sequence[Sample]) -> float:
    """What a plain round took besides its forward."""
    rounds = sum(sample.count - 1 for sample in samples)
    spent = sum(ms for sample in samples for part, ms in sample.spent_ms.items() if part != "verify")
    return spent / rounds if rounds else 0.0
