"""One side of busy.py, a process of its own: it decodes when it is told to, and says what each token took.

`python busy_side.py MODEL THREADS DEPTH`: THREADS 0 is Foredraft's default, `server` llama.cpp's server as it
comes in the wheel. Prints `ready`, reads a number of seconds from a line of standard input, decodes for so
long, and prints the milliseconds of each token as a JSON list; and so on until its input ends.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from contextlib import closing
from importlib import import_module
from time import perf_counter

from common import run_benchmark
from foredraft import Engine

CONTEXT = 4096
Decode = Callable[[float], list[float]]


class Watch:
    """The milliseconds between tokens, from the first on; over once `seconds` are."""

    def __init__(self, seconds: float) -> None:
        self._end = perf_counter() + seconds
        self._last = 0.0
        self.token_ms: list[float] = []

    def token(self) -> bool:
        """A token has come. Returns whether time is over, with one token measured at least."""
        now = perf_counter()
        if self._last:
            self.token_ms.append(1e3 * (now - self._last))
        self._last = now
        return now > self._end and bool(self.token_ms)


def foredraft(model: str, threads: int, depth: int) -> Decode:
    """Foredraft's engine, without speculation."""
    engine = Engine.load(
        model, speculate="off", threads=threads, remember=False, context_length=CONTEXT, sequences=1
    )

    def decode(seconds: float) -> list[float]:
        watch = Watch(seconds)
        most = CONTEXT - depth - 1
        while True:
            with closing(
                engine.stream(prompt(depth), max_tokens=most, ignore_eos=True, temperature=0.0)
            ) as events:
                if any(watch.token() for event in events if hasattr(event, "token")):
                    return watch.token_ms

    return decode


def server(model: str, depth: int) -> Decode:
    """llama.cpp's server in the wheel, in this process, with its defaults."""
    peer = import_module("xllamacpp")
    params = peer.CommonParams()
    params.model.path = model
    params.n_ctx, params.n_parallel, params.verbosity = CONTEXT, 1, 0
    running = peer.Server(params)

    def decode(seconds: float) -> list[float]:
        watch = Watch(seconds)
        body = {
            "prompt": prompt(depth),
            "n_predict": CONTEXT - depth - 1,
            "ignore_eos": True,
            "temperature": 0.0,
        }
        running.handle_completions(body | {"stream": True}, lambda _piece: watch.token())
        return watch.token_ms

    return decode


def prompt(depth: int) -> list[int]:
    """Tokens that every model has."""
    return [100 + 37 * i % 900 for i in range(depth)]


def main() -> None:
    """Answer until the input ends."""
    model, threads, depth = sys.argv[1:]
    decode = server(model, int(depth)) if threads == "server" else foredraft(model, int(threads), int(depth))
    print("ready", flush=True)
    for line in sys.stdin:
        print(json.dumps(decode(float(line))), flush=True)


if __name__ == "__main__":
    run_benchmark(main)
