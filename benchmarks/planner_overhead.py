"""What does deciding cost? The time beside drafting and forwards, by how many requests decode at once.

Physics: between two forwards the planner decides which drafters attempt a draft (`limits`), compares drafts
and lengths with plain decoding (`choose`), and all learn from the outcome; `engine.decisions` has the times.
It is Python on small lists, tens of microseconds; but a forward has just swept the processor's caches, so it
must be timed between real forwards. The time of the drafters themselves is not in it
(`benchmarks/drafters.py` has that). Rounds without a draft have nothing to compare, so the others are also
shown apart. Limits: 150 µs a round with one request, 60 µs more for each further one.

The garbage collector is left as it is.
"""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Sequence
from statistics import fmean, median, quantiles

from common import parser, progress, run_benchmark
from foredraft import Engine, SamplingParams
from foredraft.bench.workloads import load_prompts, select
from foredraft.config import AUTO
from foredraft.types import FinishEvent

FIRST_US, FURTHER_US = 150.0, 60.0
CONTEXT = 1024
LOOKED_AT_EVERY = 16
"""Rounds. Fewer than are kept."""


Timed = tuple[int, float, bool]
"""Of a round: requests, microseconds, and whether it had drafts to choose from."""


def main() -> None:
    """Run the benchmark; the last line of output is one JSON object."""
    arguments = parser(__doc__)
    arguments.add_argument("--levels", type=int, nargs="+", default=[1, 2, 4, 8])
    args = arguments.parse_args()
    rounds: list[Timed] = []
    for number, level in enumerate(args.levels, 1):
        rounds += decoded(args, level)
        progress(number, len(args.levels), f"{level} at once")
    print(
        "requests  rounds  mean µs  median  p95 | with drafts to choose from: share  mean µs  median | limit"
    )
    rows = {level: report(level, rounds) for level in args.levels}
    holds = all(row["mean_us"] <= row["limit_us"] for row in rows.values())
    print(json.dumps({"requests": rows, "holds": holds}))


def decoded(args: Namespace, level: int) -> list[Timed]:
    """Rounds with the real model, `level` requests at once."""
    with Engine.load(
        args.model,
        speculate=AUTO,
        threads=args.threads,
        remember=False,
        context_length=CONTEXT,
        sequences=level,
    ) as engine:
        cases = select(load_prompts(args.prompts), limit=args.limit or 16)
        prompts = [engine.encode([{"role": "user", "content": case.turns[0]}]) for case in cases]
        short = [(prompt, args.tokens) for prompt in prompts if len(prompt) + args.tokens < CONTEXT]
        return timed_rounds(engine, short, level)


def timed_rounds(engine: Engine, work: Sequence[tuple[list[int], int]], level: int) -> list[Timed]:
    """Run all of it and return the rounds in which as many requests as that decoded."""
    rounds: dict[int, Timed] = {}
    for prompt, tokens in work:
        engine.add(prompt, SamplingParams(max_tokens=tokens))
    while not engine.idle:
        for _ in range(LOOKED_AT_EVERY):
            for event in engine.step():
                if isinstance(event, FinishEvent) and event.error:
                    raise SystemExit(f"Generation failed: {event.error}")
        for decision in engine.decisions.latest():
            chose = any(choice.candidates for choice in decision.choices)
            rounds[decision.number] = (
                len(decision.choices),
                1e3 * (decision.plan_ms + decision.late_ms),
                chose,
            )
    return [row for row in rounds.values() if row[0] == level]


def report(level: int, rounds: Sequence[Timed]) -> dict[str, float]:
    """Print and return a level's numbers."""
    times = [us for requests, us, _ in rounds if requests == level]
    choosing = [us for requests, us, chose in rounds if requests == level and chose]
    if len(times) < 2 or not choosing:
        raise SystemExit(f"Too few rounds with {level} requests: use more prompts.")
    row = {
        "rounds": float(len(times)),
        "mean_us": fmean(times),
        "median_us": median(times),
        "p95_us": quantiles(times, n=20)[-1],
        "choosing_share": len(choosing) / len(times),
        "choosing_mean_us": fmean(choosing),
        "choosing_median_us": median(choosing),
        "limit_us": FIRST_US + FURTHER_US * (level - 1),
    }
    print(
        f"{level:>8}{len(times):>8}{row['mean_us']:>9.0f}{row['median_us']:>8.0f}{row['p95_us']:>5.0f} |"
        f"{100 * row['choosing_share']:>34.0f} %{row['choosing_mean_us']:>9.0f}"
        f"{row['choosing_median_us']:>8.0f} |{row['limit_us']:>6.0f}"
    )
    return {name: round(value, 3) for name, value in row.items()}


if __name__ == "__main__":
    run_benchmark(main)
