"""The server for a long time: does its memory stay where it is, and does /health answer at once?

`--clients` clients send mixed traffic for `--minutes`: chats streamed and whole, greedy and with seeds,
some of them left early; n = 2, completions, JSON schemas, forced tool calls, Anthropic's messages, OpenAI's
responses, long prompts, large texts to tokenize, and requests that must be refused. Every answer is
checked, the text of a chat against the one that the same request got before. The resident memory of the
server's process is read every 5 seconds; a process of its own asks for /health every 100 ms.

Wanted: after `--warm-up` minutes the highest memory is at most 5 % above the lowest, /health has a 99th
percentile under 50 ms, nothing goes wrong, and no request and no token in the KV cache is left over at the
end.

    python benchmarks/server_soak.py --minutes 20

Writes server_soak.json and server_soak.svg. Exit code 1 if something is not as wanted.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import httpx

from common import parser, run_benchmark
from foredraft.bench.plots import check_plotting
from foredraft.bench.workloads import load_prompts, select
from server_client import left_over, new_client
from server_common import (
    Running,
    add_results,
    figure,
    percentile,
    probing,
    serve_command,
    started,
    write_json,
)
from server_soak_plot import binned, soak_plot
from server_traffic import KINDS, Kind, Traffic, Wrong

MOST_CLIENTS = 8
MEMORY_SECONDS = 5.0
FLAT, HEALTH_MS = 0.05, 50.0
MIB = 1 << 20


@dataclass(slots=True)
class Soak:
    """What was seen. Times are time.time(), memory is bytes."""

    began: float
    done: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    memory: list[tuple[float, int]] = field(default_factory=list)
    health: list[tuple[float, float]] = field(default_factory=list)


async def visit(traffic: Traffic, rng: random.Random, until: float, soak: Soak) -> None:
    """One client: a request after the other."""
    kinds, weights = list(KINDS), list(KINDS.values())
    while time.time() < until:
        kind: Kind = rng.choices(kinds, weights)[0]
        name = getattr(kind, "__name__", "?")
        try:
            await kind(traffic, rng)
        except (Wrong, httpx.HTTPError, ValueError, LookupError) as error:
            soak.wrong.append(f"{name}: {type(error).__name__}: {error}")
            print(soak.wrong[-1], file=sys.stderr, flush=True)
        soak.done[name] += 1


async def watch(server: Running, soak: Soak) -> None:
    """Read the server's memory, and say every minute how it goes."""
    while True:
        soak.memory.append((time.time(), server.rss()))
        if len(soak.memory) % round(60 / MEMORY_SECONDS) == 1:
            minutes = (time.time() - soak.began) / 60
            mib = soak.memory[-1][1] / MIB
            print(f"{minutes:5.1f} min: {mib:.0f} MiB, {soak.done.total()} requests, {len(soak.wrong)} wrong",
                  file=sys.stderr, flush=True)  # fmt: skip
        await asyncio.sleep(MEMORY_SECONDS)


async def soaked(server: Running, prompts: Sequence[str], args: argparse.Namespace) -> Soak:
    """The whole run."""
    soak = Soak(time.time())
    async with new_client(server.url) as client:
        name = (await client.get("/v1/models")).json()["data"][0]["id"]
        traffic = Traffic(client, prompts, name, args.tokens)
        until = soak.began + 60 * args.minutes
        watching = asyncio.create_task(watch(server, soak))
        with probing(server.url) as health:
            await asyncio.gather(
                *(visit(traffic, random.Random(i), until, soak) for i in range(args.clients))
            )
        watching.cancel()
        soak.health = health
        left = await left_over(client)
    if left:
        soak.wrong.append(f"left over: {left}")
    return soak


def verdict(soak: Soak, warm_up: float) -> dict[str, float | None]:
    """Highest over lowest memory after `warm_up` seconds, as a share above 1, and percentiles of /health."""
    steady = [size for at, size in soak.memory if at >= soak.began + warm_up]
    latencies = [ms for _, ms in soak.health]
    return {
        "growth": max(steady) / min(steady) - 1 if steady else None,
        "health_p50_ms": percentile(latencies, 50),
        "health_p99_ms": percentile(latencies, 99),
        "health_max_ms": max(latencies, default=None),
    }


def slowest(samples: Sequence[tuple[float, float]], count: int = 10) -> list[tuple[float, float]]:
    """The samples that took longest, the longest first."""
    return sorted(samples, key=lambda sample: -sample[1])[:count]


def arguments() -> argparse.Namespace:
    """What the command line says."""
    made = parser(__doc__)
    made.add_argument("--minutes", type=float, default=20.0)
    made.add_argument("--warm-up", type=float, default=5.0, help="minutes that do not count for memory")
    made.add_argument("--clients", type=int, default=MOST_CLIENTS, choices=range(1, MOST_CLIENTS + 1))
    made.add_argument("--sequences", type=int, default=4)
    made.add_argument("--speculate", default="auto")
    add_results(made)
    made.set_defaults(tokens=64)
    args = made.parse_args()
    if args.warm_up >= args.minutes:
        made.error("--warm-up must end before the run does")
    return args


def main() -> None:
    """Run it; the last line of output is one JSON object."""
    args = arguments()
    check_plotting()
    prompts = [case.turns[0] for case in select(load_prompts(args.prompts), limit=args.limit)]
    options = {"threads": args.threads, "sequences": args.sequences, "context": 4096}
    with started(serve_command(args.model, args.speculate, **options)) as server:
        soak = asyncio.run(soaked(server, prompts, args))
    if soak.wrong:
        print("The server said:", *server.said, sep="\n", file=sys.stderr)
    sys.exit(closing(args, soak))


def closing(args: argparse.Namespace, soak: Soak) -> int:
    """Print and write the report; returns the exit code."""
    found = verdict(soak, 60 * args.warm_up)
    growth, p99 = found["growth"], found["health_p99_ms"]
    percent = figure(None if growth is None else 100 * growth)
    failed = [
        *([f"{len(soak.wrong)} answers were wrong"] if soak.wrong else []),
        *([f"memory changed by {percent} %"] if growth is None or growth > FLAT else []),
        *([f"/health p99 is {figure(p99)} ms"] if p99 is None or p99 >= HEALTH_MS else []),
    ]
    report = {**found, "failed": failed, "wrong": soak.wrong[:50], "requests": soak.done,
              "minutes": args.minutes, "clients": args.clients, "threads": args.threads,
              "memory": [[round(at - soak.began, 1), size] for at, size in soak.memory],
              "health_p99_by_minute": binned(soak.began, soak.health, 99),
              "health_slowest": [[round(at - soak.began, 1), ms] for at, ms in slowest(soak.health)],
             }  # fmt: skip
    file = write_json(args.results, "server_soak", report)
    plot = soak_plot(soak.began, soak.memory, soak.health, warm_up=60 * args.warm_up, limit_ms=HEALTH_MS)
    file.with_suffix(".svg").write_text(plot, encoding="utf-8")
    print(*(f"{name}: {count}" for name, count in soak.done.most_common()), sep=", ")
    print(f"memory: {percent} % between lowest and highest")
    print(f"/health: p50 {figure(found['health_p50_ms'])}, p99 {figure(p99)} ms, longest "
          f"{figure(found['health_max_ms'])} ms of {len(soak.health)}")  # fmt: skip
    print("not as wanted:", "; ".join(failed) or "nothing", f"(written to {file.with_suffix('.svg')})")
    print(json.dumps({**found, "failed": failed, "requests": soak.done.total()}))
    return 1 if failed else 0


if __name__ == "__main__":
    run_benchmark(main)
