"""What requests that come and go among kept conversations cost: with their KV cells brought together, or not.

Physics: the llama.cpp backend computes sequences in one pass over the weights only where their streams of
cells follow one another. Requests end at different times and conversations are kept, so of `--sequences`
streams any may be those that decode. Here so many requests are always running, a new one for each that ends,
half of them greedy, without speculation: in turns of `--slice` seconds by an engine that brings sequences
together (`backends/llamacpp/streams.py`) and by one that never does. Reported are tokens a second, prompts
included, and how long moving took.

    python benchmarks/coming_and_going.py --prompts FOLDER --levels 2 4 8
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from common import model_path, parser, progress, run_benchmark
from foredraft import Engine, SamplingParams
from foredraft.backends.llamacpp.loading import load_model
from foredraft.backends.llamacpp.model import LlamaCppModel
from foredraft.backends.llamacpp.streams import Streams
from foredraft.bench.workloads import load_prompts, select
from foredraft.config import ModelOptions
from foredraft.types import FinishEvent

PROMPTS = 48


class Apart(Streams):
    """Streams that stay where they are."""

    def pays(self, size: float) -> bool:  # noqa: ARG002
        return False


class Together(Streams):
    """Streams as they are used, with the time that moving took."""

    moved_ms: tuple[float, ...] = ()

    def moved(self, size: float, ms: float) -> None:
        self.moved_ms += (ms,)
        super().moved(size, ms)


@dataclass(slots=True)
class Side:
    """An engine, and its tokens a second in each turn."""

    engine: Engine
    streams: Streams
    work: Iterator[tuple[list[int], SamplingParams]]
    rates: list[float]

    def run(self, requests: int, seconds: float) -> None:
        """So many requests at once for that long. Those that are still running then are given up."""
        running: set[int] = set()
        tokens, began = 0, time.perf_counter()
        while (now := time.perf_counter() - began) < seconds:
            while len(running) < requests:
                running.add(self.engine.add(*next(self.work)))
            for event in self.engine.step():
                if isinstance(event, FinishEvent):
                    running.discard(event.request)
                else:
                    tokens += 1
        self.rates.append(tokens / now)
        for request in running:
            self.engine.abort(request)
        self.engine.step()


def opened(file: Path, args: argparse.Namespace, streams: Streams) -> Side:
    """An engine whose model uses these streams, with its own deck of requests, the same for all."""
    options = ModelOptions(sequences=args.sequences, context_length=2048, threads=args.threads)
    loaded = load_model(file, options)
    if not isinstance(loaded, LlamaCppModel):
        raise SystemExit("Models with a recurrent state are never moved.")
    loaded._streams = streams
    engine = Engine(loaded)
    engine.set_speculation("off")
    cases = select(load_prompts(args.prompts), limit=args.limit or PROMPTS)
    deck = [
        (
            engine.encode([{"role": "user", "content": case.turns[0]}])[: 2048 - args.tokens],
            SamplingParams(max_tokens=args.tokens, temperature=temperature, seed=number),
        )
        for number, case in enumerate(cases)
        for temperature in (0.0, 0.8)
    ]
    random.Random(1).shuffle(deck)
    return Side(engine, streams, itertools.cycle(deck), [])


def report(level: int, together: Side, apart: Side) -> dict[str, float | int]:
    """The medians of a level's turns, and of the ratios of turns that followed one another."""
    ratios = [a / b for a, b in zip(together.rates, apart.rates, strict=True)]
    found = {
        "requests": level,
        "apart": round(median(apart.rates), 1),
        "together": round(median(together.rates), 1),
        "ratio": round(median(ratios), 3),
        "least": round(min(ratios), 3),
        "most": round(max(ratios), 3),
    }
    print(" · ".join(f"{name} {value}" for name, value in found.items()), flush=True)
    return found


def arguments() -> argparse.Namespace:
    """What the command line says."""
    made = parser(__doc__)
    made.add_argument("--levels", type=int, nargs="+", default=[2, 4, 8], help="requests at once")
    made.add_argument("--sequences", type=int, default=16, help="streams of KV cells")
    made.add_argument("--slice", type=float, default=10.0, help="seconds of a turn")
    made.add_argument("--repeat", type=int, default=3, help="turns of each side")
    made.set_defaults(tokens=128)
    return made.parse_args()


def measured(args: argparse.Namespace, sides: Sequence[Side]) -> Iterator[dict[str, float | int]]:
    """A report of each level."""
    for level in args.levels:
        for number in range(args.repeat):
            for side in sides if number % 2 else reversed(sides):
                side.run(level, args.slice)
            progress(number + 1, args.repeat, f"{level} at once")
        yield report(level, sides[0], sides[1])
        for side in sides:
            side.rates.clear()


def main() -> None:
    """Run the benchmark; the last line of output is one JSON object."""
    args = arguments()
    file = Path(args.model or model_path(None))
    together = Together(args.sequences)
    with ExitStack() as stack:
        sides = [opened(file, args, streams) for streams in (together, Apart(args.sequences))]
        for side in sides:
            stack.enter_context(side.engine)
        levels = list(measured(args, sides))
    moves = together.moved_ms
    print(json.dumps({"levels": levels, "moves": len(moves),
                      "median_move_ms": round(median(moves), 1) if moves else None,
                      "longest_move_ms": round(max(moves, default=0.0), 1)}))  # fmt: skip


if __name__ == "__main__":
    run_benchmark(main)
