"""What does decoding lose where other processes use the cores too?

Physics: threads that compute one product each wait for each other some 300 times in a forward. llama.cpp's
spin meanwhile: if a core is taken by another process, the threads on all others spend its time slice waiting.
A thread that sleeps instead has to be woken, 300 times in a forward as well, which costs more than it saves
where nothing else runs. So three things are compared: how many threads, how long they spin before they sleep
(libgomp's GOMP_SPINCOUNT and OMP_WAIT_POLICY, read when it is loaded, so every setting is a process), and
a number of threads that follows the load (`auto`, Foredraft's default).

Plain decoding, beside 0, 1, 2, … processes that only compute. Everything in turns, `--repeat` rounds: the
medians of tokens/s, of the median and the 99th percentile of what a token takes, and of the ratios to the
first setting in the same round. A setting is `THREADS[:NAME=VALUE,…]`; `auto` is
0 threads, `server` llama.cpp's own as in the wheel, with its defaults.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median, quantiles
from time import sleep

from common import model_path, parser, progress, run_benchmark

SIDE = Path(__file__).with_name("busy_side.py")
SETTINGS = (
    "2",
    "auto",
    "1",
    *(f"2:GOMP_SPINCOUNT={count}" for count in (0, 100, 1_000, 10_000, 100_000, 1_000_000)),
    "2:OMP_WAIT_POLICY=passive",
    "server",
)
LEAD_IN_S = 1.0
"""Seconds of decoding that are not counted, after the other processes have begun."""

BUSY = "from time import monotonic\nend = monotonic() + {seconds}\nwhile monotonic() < end: sum(range(9999))"
"""A process that only computes; it ends by itself after a time limit."""


@dataclass(frozen=True, slots=True)
class Figures:
    """Of one stretch of decoding: tokens/s, and the milliseconds of a token."""

    rate: float
    p50: float
    p99: float


def figures(token_ms: Sequence[float]) -> Figures:
    """What there is to say about tokens that took so long. Needs one at least."""
    if len(token_ms) == 1:
        return Figures(1e3 / token_ms[0], token_ms[0], token_ms[0])
    return Figures(
        1e3 * len(token_ms) / sum(token_ms),
        median(token_ms),
        min(quantiles(token_ms, n=100, method="inclusive")[98], max(token_ms)),
    )


@contextmanager
def busy_processes(count: int, seconds: float) -> Iterator[None]:
    """That many processes compute meanwhile, for no more than `seconds`."""
    code = BUSY.format(seconds=seconds)
    running = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(count)]
    try:
        yield
    finally:
        for process in running:
            process.kill()
            process.wait()


class Side:
    """A process that decodes with one setting, on demand."""

    def __init__(self, setting: str, model: str, depth: int) -> None:
        threads, _, variables = setting.partition(":")
        threads = "0" if threads == "auto" else threads
        environment = dict(os.environ)
        for pair in filter(None, variables.split(",")):
            name, _, environment[name] = pair.partition("=")
        self._process = subprocess.Popen(
            [sys.executable, str(SIDE), model, threads, str(depth)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            text=True,
        )
        self._answer()

    def decode(self, seconds: float) -> list[float]:
        """Decode for so long: milliseconds by token."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{seconds}\n")
        self._process.stdin.flush()
        answer: list[float] = json.loads(self._answer())
        return answer

    def _answer(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"The side ended with code {self._process.wait()}.")
        return line

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()


def measure(
    settings: Sequence[str], counts: Sequence[int], side: tuple[str, int], *, seconds: float, repeat: int
) -> dict[tuple[str, int], list[Figures]]:
    """By setting and number of busy processes: the figures of each round."""
    found: dict[tuple[str, int], list[Figures]] = defaultdict(list)
    for turn in range(repeat):
        for setting in settings:
            decoding = Side(setting, *side)
            try:
                for count in counts:
                    with busy_processes(count, 10 * (seconds + LEAD_IN_S)):
                        sleep(0.2)  # until they run
                        decoding.decode(LEAD_IN_S)
                        found[setting, count].append(figures(decoding.decode(seconds)))
                    sleep(0.2)
            finally:
                decoding.close()
            progress(turn * len(settings) + settings.index(setting) + 1, repeat * len(settings), setting)
    return found


def main() -> None:
    """Run the benchmark; the last line of output is one JSON object."""
    arguments = parser(__doc__)
    arguments.add_argument(
        "--setting", action="append", help="repeatable; the first is what others are compared with"
    )
    arguments.add_argument("--busy", default="0,1,2,4", help="numbers of busy processes")
    arguments.add_argument("--seconds", type=float, default=3.0, help="of decoding, for each figure")
    arguments.add_argument("--depth", type=int, default=64, help="tokens of the prompt")
    arguments.add_argument("--repeat", type=int, default=3)
    args = arguments.parse_args()
    settings, counts = args.setting or SETTINGS, [int(count) for count in args.busy.split(",")]
    side = args.model or model_path(None), args.depth
    found = measure(settings, counts, side, seconds=args.seconds, repeat=args.repeat)
    rows = []
    print(f"{'busy':>4} {'setting':<28} {'tokens/s':>9} {'ratio':>6} {'p50 ms':>8} {'p99 ms':>8}")
    for count in counts:
        for setting in settings:
            own, first = found[setting, count], found[settings[0], count]
            ratio = median(mine.rate / other.rate for mine, other in zip(own, first, strict=True))
            rate, p50, p99 = (median(getattr(it, name) for it in own) for name in ("rate", "p50", "p99"))
            print(f"{count:>4} {setting:<28} {rate:>9.1f} {ratio:>6.2f} {p50:>8.1f} {p99:>8.1f}")
            rows.append({"busy": count, "setting": setting, "ratio": round(ratio, 4), "rate": round(rate, 2)})
            rows[-1] |= {"p50_ms": round(p50, 2), "p99_ms": round(p99, 2)}
    print(json.dumps({"rounds": args.repeat, "depth": args.depth, "results": rows}))


if __name__ == "__main__":
    run_benchmark(main)
