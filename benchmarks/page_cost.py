"""What does an open page cost the answers? Tokens a second of concurrent streams with the page open and
without it, for each of its views.

Physics: an open page follows one stream of events. Writing them takes time of the server's event loop, which
streams the answers, and of its lock; reading and drawing them takes time of the browser's processes, which
share the processor with the model if the browser runs on the same machine, as it does here. At most 2 % of
the tokens a second are wanted.

A pair is the same `--streams` prompts answered at the same time, once with the page open on a view and once
with it closed, while the browser runs in both; which comes first turns from pair to pair. Each round goes
through all views in an order of its own. `none` is a pair of two turns without a page: the noise. All prompts
were answered once before, so that no side finds a prompt in the KV cache that the other had to read.
Opening the page is not measured: the browser is busy with that for a second or two (`--settle`). Texts are
greedy and not remembered, so both sides do the same work. The rate is all tokens over the time from the first
request to the end of the last.

    python benchmarks/page_cost.py --repeat 5

Needs Node.js, Chromium and `npm ci` in page/. Writes page_cost.json; the last line of output is one JSON
object. Exit code 1 if a text differs or a request fails.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from common import parser, progress, run_benchmark
from foredraft.bench.interval import confidence
from foredraft.bench.workloads import PromptCase, load_prompts, select
from page_browser import Browser, browser
from server_client import Answer, chat_body, new_client, stream_answer
from server_common import add_results, figure, mean_ratio, serve_command, started, table, write_json

NONE = "none"
WANTED = 0.02


@dataclass(frozen=True, slots=True)
class Turn:
    """Answers that ran at the same time, and their tokens a second together."""

    answers: Sequence[Answer]
    rate: float


Ask = Callable[[Sequence[PromptCase]], Turn]


def asking(url: str, tokens: int) -> Ask:
    """Asks a server all prompts of a group at the same time."""

    async def all_of(group: Sequence[PromptCase]) -> list[Answer]:
        async with new_client(url) as client:
            bodies = [chat_body(case.turns[0], tokens) for case in group]
            return await asyncio.gather(*(stream_answer(client, body) for body in bodies))

    def ask(group: Sequence[PromptCase]) -> Turn:
        began = time.perf_counter()
        answers = asyncio.run(all_of(group))
        return Turn(answers, sum(answer.tokens for answer in answers) / (time.perf_counter() - began))

    return ask


def groups(cases: Sequence[PromptCase], size: int) -> list[Sequence[PromptCase]]:
    """`size` prompts at a time; a rest is left out, unless it is all there is."""
    whole = [cases[start : start + size] for start in range(0, len(cases) - size + 1, size)]
    return whole or [cases]


def pairs(
    views: Sequence[str], found: Sequence[Sequence[PromptCase]], repeat: int, seed: int
) -> Iterator[tuple[str, Sequence[PromptCase], bool]]:
    """What to measure, in order: the view, the prompts, and whether the page is open in the first turn."""
    order = random.Random(seed)
    for again in range(repeat):
        for number, group in enumerate(found):
            shuffled = order.sample(views, len(views))
            yield from ((view, group, (again + number + views.index(view)) % 2 == 0) for view in shuffled)


def measure(
    ask: Ask, shown: Browser, url: str, args: argparse.Namespace
) -> dict[str, list[tuple[Turn, Turn]]]:
    """The turns with the page open and without it, by view."""
    cases = select(load_prompts(args.prompts), limit=args.limit)
    found = groups(cases, args.streams)
    for group in found:
        ask(group)
    shown.show(url)
    views = [NONE, *shown.views(args.views)]
    turns: dict[str, list[tuple[Turn, Turn]]] = {view: [] for view in views}
    total = len(views) * len(found) * args.repeat
    for done, (view, group, open_first) in enumerate(pairs(views, found, args.repeat, args.seed), 1):
        by_side = {}
        for is_open in (open_first, not open_first):
            shown.show(f"{url}/#/{view}" if is_open and view != NONE else None)
            time.sleep(args.settle)
            by_side[is_open] = ask(group)
        turns[view].append((by_side[True], by_side[False]))
        progress(done, total, view)
    shown.show(None)
    return turns


def summary(turns: Sequence[tuple[Turn, Turn]]) -> dict[str, Any]:
    """Rates of both sides, and open ÷ closed: geometric mean with its interval, the lowest and highest."""
    ratios = [opened.rate / closed.rate for opened, closed in turns]
    low, high = confidence(ratios) or (None, None)
    return {
        "pairs": len(ratios),
        "open": mean_ratio(opened.rate for opened, _ in turns),
        "closed": mean_ratio(closed.rate for _, closed in turns),
        "ratio": mean_ratio(ratios),
        "low": low,
        "high": high,
        "lowest": min(ratios),
        "highest": max(ratios),
    }


def as_table(views: Mapping[str, Mapping[str, Any]]) -> str:
    """One line a view."""
    head = ["view", "pairs", "tokens/s open", "closed", "open ÷ closed", "95 %", "lowest – highest"]
    return table(
        head,
        (
            [
                view,
                str(one["pairs"]),
                figure(one["open"]),
                figure(one["closed"]),
                figure(one["ratio"], 3),
                between(one["low"], one["high"]),
                between(one["lowest"], one["highest"]),
            ]
            for view, one in views.items()
        ),
    )


def between(low: float | None, high: float | None) -> str:
    """Two bounds in a table, or a dash."""
    return "–" if low is None or high is None else f"{low:.3f} – {high:.3f}"


def wrong(turns: Mapping[str, Sequence[tuple[Turn, Turn]]]) -> list[str]:
    """Requests that failed, and texts that are not the same with the page open."""
    said = []
    for view, some in turns.items():
        for opened, closed in some:
            answers = [*opened.answers, *closed.answers]
            said += [f"{view}: {answer.error}" for answer in answers if answer.error]
            both = zip(opened.answers, closed.answers, strict=True)
            said += [f"{view}: a text differs" for one, other in both if one.text != other.text]
    return said


def arguments() -> argparse.Namespace:
    """What the command line says."""
    made = parser(__doc__)
    made.add_argument("--streams", type=int, default=4, help="answers at the same time")
    made.add_argument("--repeat", type=int, default=4, help="pairs of each view and group of prompts")
    made.add_argument("--views", nargs="*", default=(), help="those of the page's menu if absent")
    made.add_argument("--settle", type=float, default=5.0, help="seconds before each turn")
    made.add_argument("--seed", type=int, default=1, help="of the orders of views")
    add_results(made)
    made.set_defaults(limit=4, tokens=400)
    return made.parse_args()


def main() -> None:
    """Run the benchmark; the last line of output is one JSON object."""
    args = arguments()
    command = serve_command(args.model, "auto", threads=args.threads, sequences=args.streams, context=2048)
    with started(command) as server, browser() as shown:
        turns = measure(asking(server.url, args.tokens), shown, server.url, args)
    views = {view: summary(some) for view, some in turns.items()}
    print(as_table(views))
    mean = mean_ratio(one["ratio"] for view, one in views.items() if view != NONE)
    percent = None if mean is None else 100 * (1 - mean)
    print(f"An open page costs {figure(percent)} % ({100 * WANTED:.0f} % at most are wanted).")
    errors = wrong(turns)
    report = {"ratio": mean, "errors": errors, "streams": args.streams, "tokens": args.tokens, "views": views}
    print(*errors[:5], f"written to {write_json(args.results, 'page_cost', report)}", sep="\n")
    print(json.dumps({"ratio": mean, "noise": views[NONE]["ratio"], "errors": len(errors)}))
    sys.exit(1 if errors else 0)


if __name__ == "__main__":
    run_benchmark(main)
