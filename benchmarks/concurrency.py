"""Does `auto` hold with many requests at once?

Physics: one forward serves all requests, so n requests that decode plainly already fill a batch of n rows.
Where V(n) rises, the rows of drafts cost more beside others than alone, and at some number of requests the
best draft is none; where it is flat they stay worth it. A hand-set draft length is right at one load only.

With 1, 2, 4 and 8 requests in flight all settings answer the same prompts, in short turns. The rate is
aggregate: tokens ÷ the time of its turns, prompts included. Every block begins with drafters and planners
that have learnt nothing, and per setting the median over `--repeat` counts. `auto` is compared with the best
of the others.

In virtual time, without a model: `python -m lab.compare OLD NEW --levels 4 8`.
"""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from time import perf_counter

from common import parser, progress, run_benchmark
from foredraft import Engine, SamplingParams
from foredraft.bench.slices import in_slices, turn_seconds
from foredraft.bench.workloads import load_prompts, select
from foredraft.config import AUTO, OFF
from foredraft.engine.loading import freeze_heap
from foredraft.types import FinishEvent, FinishReason

CONTEXT = 1024


def main() -> None:
    """Run the benchmark; the last line of output is one JSON object."""
    arguments = parser(__doc__)
    arguments.add_argument("--repeat", type=int, default=3)
    arguments.add_argument("--levels", type=int, nargs="+", default=[1, 2, 4, 8])
    arguments.add_argument(
        "--static", nargs="*", default=["ngram-simple", "ngram-mod:n=6,min=0,max=16", "suffix:max=8"]
    )
    args = arguments.parse_args()
    names = [OFF, *args.static, AUTO]
    print(f"tokens/s at once{'':<4}" + "".join(f"{name[:18]:>20}" for name in names) + "   auto ÷ best")
    measure_all(args, names)


def measure_all(args: Namespace, names: Sequence[str]) -> None:
    """The table of this machine, and the JSON line."""
    engines = dict(zip(names, load(names, args), strict=True))
    work = [(prompt, args.tokens) for prompt in encode(engines[OFF], args)]
    found: dict[int, dict[str, list[float]]] = {level: {} for level in args.levels}
    blocks = [(again, level) for again in range(args.repeat) for level in args.levels]
    turn = turn_seconds(None)
    for number, (again, level) in enumerate(blocks):
        serving: dict[str, Serving] = {}
        for name in names if again % 2 == 0 else names[::-1]:
            engines[name].set_speculation(name)
            serving[name] = Serving(engines[name], work, level, perf_counter)
        for name, rate in in_slices(serving, turn):
            found[level].setdefault(name, []).append(rate)
        turn = turn_seconds(found[level][OFF][-1] / level)
        progress(number + 1, len(blocks), f"{level} at once")
    for engine in engines.values():
        engine.close()
    shares = {level: report(level, names, rates) for level, rates in found.items()}
    print(json.dumps({"auto_over_best": shares, "bound": 0.97, "holds": min(shares.values()) >= 0.97}))


def load(speculations: Sequence[str], args: Namespace) -> list[Engine]:
    """An engine for each, on one model: where weights lie in memory changes a forward by a hundredth."""
    engines = Engine.load_together(
        args.model,
        speculations,
        threads=args.threads,
        remember=False,
        context_length=CONTEXT,
        sequences=max(args.levels),
    )
    freeze_heap()
    return engines


def encode(engine: Engine, args: Namespace) -> list[list[int]]:
    """Token ids of the prompts that leave room for an answer."""
    cases = select(load_prompts(args.prompts), limit=args.limit or 16)
    prompts = [engine.encode([{"role": "user", "content": case.turns[0]}]) for case in cases]
    return [prompt for prompt in prompts if len(prompt) + args.tokens < CONTEXT]


class Serving:
    """`level` requests in flight until all prompts have their answers, each of at most `tokens` tokens."""

    def __init__(
        self,
        engine: Engine,
        work: Sequence[tuple[list[int], int]],
        level: int,
        clock: Callable[[], float],
    ) -> None:
        self._engine = engine
        self._waiting = list(reversed(work))
        self._level, self._clock = level, clock
        self._running = self._made = 0
        self._spent = 0.0

    def go_on(self, seconds: float) -> float | None:
        """Serve for about so long; tokens per second when all have their answers."""
        began, passed = self._clock(), 0.0
        while (self._waiting or self._running) and passed < seconds:
            self._round()
            passed = self._clock() - began
        self._spent += passed
        return None if self._waiting or self._running else self._made / self._spent

    def _round(self) -> None:
        while self._waiting and self._running < self._level:
            prompt, tokens = self._waiting.pop()
            self._engine.add(prompt, SamplingParams(max_tokens=tokens))
            self._running += 1
        for event in self._engine.step():
            if isinstance(event, FinishEvent):
                if event.reason is FinishReason.ERROR:
                    raise SystemExit(f"Generation failed: {event.error}")
                self._running -= 1
                self._made += event.usage.completion_tokens


def report(level: int, names: Sequence[str], rates: Mapping[str, list[float]]) -> float:
    """Print a level's line, in the order of `names`; returns `auto`'s share of the best of the others."""
    medians = {name: median(rates[name]) for name in names}
    best = max((name for name in medians if name != AUTO), key=medians.__getitem__)
    share = median(a / b for a, b in zip(rates[AUTO], rates[best], strict=True))
    print(
        f"{level:>16}    "
        + "".join(f"{value:>20.1f}" for value in medians.values())
        + f"   {share:.3f} of {best}"
    )
    return round(share, 4)


if __name__ == "__main__":
    run_benchmark(main)
