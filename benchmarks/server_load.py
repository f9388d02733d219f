"""The server under load: is every stream's text the one it has alone, and is `auto` not behind `off`?

First every prompt is answered alone, greedily and at temperature 0.8 with a seed, by an otherwise idle server
without speculation. Then there are two servers of the same model, one with `--speculate off`, one with
`auto`; only one of them gets requests at a time. At each level that number of clients stream answers, half of
them greedy, in slices of `--slice` seconds: off, auto, auto, off, … until each server had `--seconds`. Both
servers get the same requests in the same order. Tokens received within the slice are counted; answers that
are still running then are read to their end, so that every text is compared whole. A separate process
requests /health ten times a second.

Then half of `--leavers` clients disconnect at random positions: what they had read must be a prefix of the
text of the request alone, and afterwards no request and no token in the KV cache may be left over.

The list of requests is repeated when it is used up, so `auto` can draft from earlier answers: `--limit` is
the number of its prompts. Targets: 1.15 × off with one client, and 0.97 × at each level.

    python benchmarks/server_load.py --prompts FOLDER --seconds 60

Exit code 1 if a text differs, a request fails, or something is left over.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import count
from statistics import median
from typing import Any

from common import parser, progress, run_benchmark
from foredraft.bench.workloads import load_prompts, select
from server_client import Answer, chat_body, left_over, new_client, stream_answer
from server_common import (
    Running,
    add_results,
    figure,
    percentile,
    probing,
    serve_command,
    started,
    table,
    write_json,
)

SETTINGS = ("off", "auto")
WANTED_ALONE, WANTED = 1.15, 0.97
PROMPTS = 48
LEAVES_WITHIN = 60
"""Pieces of text after which a client that leaves has left."""


@dataclass(frozen=True, slots=True)
class Ask:
    """A request, and the text that it has alone."""

    body: Mapping[str, Any]
    text: str


@dataclass(slots=True)
class Slice:
    """What the clients saw while one server was driven. Times in milliseconds.

    `tokens` came within `seconds`; `streams` are the rates of whole answers after their first token.
    """

    setting: str
    seconds: float
    tokens: float = 0.0
    answers: int = 0
    left: int = 0
    different: int = 0
    errors: list[str] = field(default_factory=list)
    first: list[float] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)
    streams: list[float] = field(default_factory=list)
    health: list[float] = field(default_factory=list)

    @property
    def rate(self) -> float:
        """Tokens a second, of all clients together."""
        return self.tokens / self.seconds

    def take(self, ask: Ask, answer: Answer, deadline: float) -> None:
        """Count an answer; one that its client left is only as long as it was read."""
        if answer.error:
            self.errors.append(answer.error)
            return
        if answer.left:
            self.left += 1
            self.different += not ask.text.startswith(answer.text)
        else:
            self.answers += 1
            self.different += answer.text != ask.text
            self.tokens += answer.tokens_until(deadline)
        self.first += [answer.first_ms] if answer.first_ms is not None else []
        self.gaps += answer.gaps_ms
        self.streams += [answer.decode_rate] if answer.decode_rate is not None else []

    def row(self) -> dict[str, Any]:
        """For the JSON file."""
        return {"setting": self.setting, "tokens_per_second": round(self.rate, 2), "answers": self.answers,
                "left": self.left, "different": self.different, "errors": self.errors[:5]}  # fmt: skip


Leave = Callable[[int], int | None]
"""After how many pieces of text a client, given by its number, leaves its next answer; None: it stays."""


def stay(client: int) -> None:
    """No client disconnects."""


async def drive(
    server: Running, setting: str, asks: Iterator[Ask], clients: int, seconds: float, leave: Leave = stay
) -> Slice:
    """One slice: clients that ask anew until the time is up, and hear their last answers to the end."""
    found = Slice(setting, seconds)
    async with new_client(server.url) as client:
        with probing(server.url) as health:
            deadline = time.perf_counter() + seconds

            async def one(number: int) -> None:
                while time.perf_counter() < deadline:
                    ask = next(asks)
                    found.take(
                        ask, await stream_answer(client, ask.body, leave_after=leave(number)), deadline
                    )

            await asyncio.gather(*map(one, range(clients)))
        left = await left_over(client)
    found.health = [ms for _, ms in health]
    if left:
        found.errors.append(f"left over: {left}")
    return found


def bodies(prompts: Sequence[str], tokens: int) -> list[dict[str, Any]]:
    """Each prompt greedily and with a seed, in a random order that is always the same."""
    made = [chat_body(prompt, tokens) for prompt in prompts]
    made += [chat_body(prompt, tokens, temperature=0.8, seed=1000 + i) for i, prompt in enumerate(prompts)]
    random.Random(1).shuffle(made)
    return made


async def answers_alone(server: Running, wanted: Sequence[Mapping[str, Any]]) -> list[Ask]:
    """The requests with their texts, one after the other."""
    deck = []
    async with new_client(server.url) as client:
        for number, body in enumerate(wanted):
            answer = await stream_answer(client, body)
            if answer.error:
                raise SystemExit(f"A request failed without other requests: {answer.error}")
            deck.append(Ask(body, answer.text))
            progress(number + 1, len(wanted), "alone")
    return deck


def dealt(deck: Sequence[Ask], start: int) -> Iterator[Ask]:
    """The deck from that place on, without end."""
    return (deck[at % len(deck)] for at in count(start))


def measure_level(
    servers: Mapping[str, Running], deck: Sequence[Ask], clients: int, seconds: float, slice_seconds: float
) -> dict[str, list[Slice]]:
    """The slices of both settings, in turns. Slice i of both gets the same requests."""
    slices: dict[str, list[Slice]] = {setting: [] for setting in SETTINGS}
    dealt_to = 0
    for number in range(max(1, round(seconds / slice_seconds))):
        for setting in SETTINGS if number % 2 == 0 else reversed(SETTINGS):
            asks = dealt(deck, dealt_to)
            found = asyncio.run(drive(servers[setting], setting, asks, clients, slice_seconds))
            slices[setting].append(found)
            print(f"x{clients} {setting}: {found.rate:.1f} tokens/s", *found.errors[:3], flush=True)
        dealt_to += max(found[-1].answers for found in slices.values())
    return slices


ADDED = (
    "seconds", "tokens", "answers", "left", "different", "errors", "first", "gaps", "streams", "health",
)  # fmt: skip
"""What of several slices adds up."""


def total(slices: Sequence[Slice]) -> Slice:
    """All slices of a setting as one."""
    whole = Slice(slices[0].setting, 0.0)
    for one in slices:
        for name in ADDED:
            setattr(whole, name, getattr(whole, name) + getattr(one, name))
    return whole


def described(slices: Sequence[Slice]) -> dict[str, Any]:
    """One setting at one level. Latencies in milliseconds."""
    whole = total(slices)
    return {
        "tokens_per_second": whole.rate,
        "median_slice": median(one.rate for one in slices),
        "stream_tokens_per_second": percentile(whole.streams, 50),
        "answers": whole.answers,
        "left": whole.left,
        "different": whole.different,
        "errors": len(whole.errors),
        "first_ms": {"p50": percentile(whole.first, 50), "p99": percentile(whole.first, 99)},
        "gap_ms": {"p50": percentile(whole.gaps, 50), "p99": percentile(whole.gaps, 99)},
        "health_ms": {"p50": percentile(whole.health, 50), "p99": percentile(whole.health, 99)},
        "slices": [one.row() for one in slices],
    }


def compared(slices: Mapping[str, Sequence[Slice]]) -> dict[str, Any]:
    """Both settings at one level, and the ratio of auto to off: the median over pairs of slices."""
    pairs = zip(slices["off"], slices["auto"], strict=True)
    ratios = [auto.rate / off.rate for off, auto in pairs if off.rate]
    return {
        **{setting: described(found) for setting, found in slices.items()},
        "ratio": median(ratios) if ratios else None,
        "ratios": ratios,
    }


def as_table(levels: Mapping[str, Mapping[str, Any]]) -> str:
    """A row for each level and setting."""
    head = ["clients", "speculate", "tokens/s", "÷ off", "÷ off, slices", "one stream's tokens/s",
            "first token p50 / p99, ms", "gap p50 / p99, ms", "/health p50 / p99, ms", "answers",
            "different", "errors"]  # fmt: skip
    rows = []
    for level, found in levels.items():
        for setting in SETTINGS:
            one = found[setting]
            spread = "–".join(figure(value, 2) for value in (min(found["ratios"]), max(found["ratios"]))) \
                if setting == "auto" and found["ratios"] else ""  # fmt: skip
            rows.append([
                level, setting, figure(one["tokens_per_second"]),
                figure(found["ratio"], 3) if setting == "auto" else "", spread,
                figure(one["stream_tokens_per_second"]),
                *(" / ".join(figure(one[name][part]) for part in ("p50", "p99"))
                  for name in ("first_ms", "gap_ms", "health_ms")),
                str(one["answers"]), str(one["different"]), str(one["errors"]),
            ])  # fmt: skip
    return table(head, rows)


def leavers(rng: random.Random) -> Leave:
    """Every second client leaves each of its answers somewhere."""
    return lambda client: rng.randrange(1, LEAVES_WITHIN) if client % 2 else None


def arguments() -> argparse.Namespace:
    """What the command line says."""
    made = parser(__doc__)
    made.add_argument("--levels", type=int, nargs="+", default=[1, 4, 8, 16], help="numbers of clients")
    made.add_argument("--seconds", type=float, default=60.0, help="for each level and server")
    made.add_argument("--slice", type=float, default=15.0, help="seconds that one server is driven at a time")
    made.add_argument("--leavers", type=int, default=8, help="clients of which half go away; 0: no such part")
    made.set_defaults(tokens=128)
    add_results(made)
    return made.parse_args()


def main() -> None:
    """Run all levels; the last line of output is one JSON object."""
    args = arguments()
    cases = select(load_prompts(args.prompts), limit=args.limit or PROMPTS)
    wanted = bodies([case.turns[0] for case in cases], args.tokens)
    most = max([*args.levels, args.leavers])
    options = {"threads": args.threads, "context": 2048}
    with started(serve_command(args.model, "off", sequences=1, **options)) as alone:
        deck = asyncio.run(answers_alone(alone, wanted))
    levels: dict[str, dict[str, Any]] = {}
    gone: dict[str, dict[str, Any]] = {}
    with ExitStack() as stack:
        servers = {
            setting: stack.enter_context(
                started(serve_command(args.model, setting, sequences=most, **options))
            )
            for setting in SETTINGS
        }
        for clients in args.levels:
            slices = measure_level(servers, deck, clients, args.seconds, args.slice)
            levels[str(clients)] = compared(slices)
        for setting, server in servers.items() if args.leavers else ():
            asks = dealt(deck, 0)
            leave = leavers(random.Random(2))
            found = asyncio.run(drive(server, setting, asks, args.leavers, 2 * args.slice, leave))
            gone[setting] = described([found])
            print(
                f"{setting}: {found.left} answers left, {found.answers} heard", *found.errors[:3], flush=True
            )
    sys.exit(closing(args, levels, gone))


def closing(
    args: argparse.Namespace, levels: Mapping[str, Mapping[str, Any]], gone: Mapping[str, Mapping[str, Any]]
) -> int:
    """Print and write the report; returns the exit code."""
    print(as_table(levels))
    behind = [
        f"x{level}: {figure(found['ratio'], 3)} < {wanted}"
        for level, found in levels.items()
        if (found["ratio"] or 0.0) < (wanted := WANTED_ALONE if level == "1" else WANTED)
    ]
    print("slower than wanted:", "; ".join(behind) or "nowhere")
    seen = [found[setting] for found in levels.values() for setting in SETTINGS] + list(gone.values())
    failed = sum(one["different"] + one["errors"] for one in seen)
    report = {"failed": failed, "behind": behind, "threads": args.threads, "tokens": args.tokens,
              "seconds": args.seconds, "levels": levels, "leaving": gone}  # fmt: skip
    file = write_json(args.results, "server_load", report)
    ratios = {level: found["ratio"] for level, found in levels.items()}
    print(f"written to {file}")
    print(json.dumps({"failed": failed, "behind": behind, "ratios": ratios}))
    return 1 if failed else 0


if __name__ == "__main__":
    run_benchmark(main)
