"""Does memory stay flat while the page is open? Keeps it open for some minutes while a client asks without a
pause, and prints each minute what the tab and the server hold.

Physics: the tab holds what its views have drawn and the rows that they keep, which are bounded; what a view
held is free once another is shown. So heap and DOM nodes of a view, after the garbage is collected, are the
same at every visit once its tables are full. The server keeps the last requests, rounds and lines of the log,
all bounded, too, beside what it holds for prompts and drafts (server_memory.py).

Each minute is one visit to a view, in turns. The figures are those at the end of a visit.

    python benchmarks/page_memory.py --minutes 20

Needs Node.js, Chromium and `npm ci` in page/. The last line of output is one JSON object: for each view what
the last visit held more than the second, in which its tables have rows.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import cycle, islice

from common import parser, run_benchmark
from foredraft.bench.workloads import load_prompts, select
from page_browser import Browser, browser
from server_client import chat_body, new_client, stream_answer
from server_common import Running, figure, serve_command, started

MIB = 1 << 20
VIEWS = ("overview", "speculation", "requests", "models")
Visit = dict[str, float]


@contextmanager
def asking(url: str, prompts: Sequence[str], tokens: int) -> Iterator[list[int]]:
    """A client that asks one prompt after the other. The list has how many tokens each answer had; leaving
    the block waits for the last. Ends the script if a request fails.
    """
    ended, counts, errors = threading.Event(), list[int](), list[str]()

    async def ask() -> None:
        async with new_client(url) as client:
            for prompt in cycle(prompts):
                if ended.is_set() or errors:
                    return
                answer = await stream_answer(client, chat_body(prompt, tokens))
                counts.append(answer.tokens)
                errors.extend([answer.error] if answer.error else [])

    thread = threading.Thread(target=lambda: asyncio.run(ask()))
    thread.start()
    try:
        yield counts
    finally:
        ended.set()
        thread.join()
    if errors:
        raise SystemExit(f"A request failed: {errors[0]}")


def visits(
    shown: Browser, server: Running, views: Sequence[str], number: int, seconds: float
) -> Iterator[tuple[str, Visit]]:
    """The view and what there is at the end of each visit."""
    shown.show(server.url)
    for view in islice(cycle(shown.views(views)), number):
        shown.show(f"{server.url}/#/{view}")
        time.sleep(seconds)
        tab = shown.memory()
        yield (
            view,
            {
                "heap_mib": tab["heap_bytes"] / MIB,
                "nodes": tab["nodes"],
                "listeners": tab["listeners"],
                "server_mib": server.rss() / MIB,
            },
        )


def growth(seen: Sequence[tuple[str, Visit]]) -> Mapping[str, Visit]:
    """What the last visit to each view held more than the second, for views with three visits or more."""
    by_view: dict[str, list[Visit]] = {}
    for view, visit in seen:
        by_view.setdefault(view, []).append(visit)
    return {
        view: {name: round(some[-1][name] - some[1][name], 2) for name in some[-1]}
        for view, some in by_view.items()
        if len(some) > 2
    }


def line(visit: object, view: object, *figures: object) -> str:
    """One line of what is printed."""
    return f"{visit:>5}  {view:<12}" + "".join(f"{one:>12}" for one in figures)


def arguments() -> argparse.Namespace:
    """What the command line says."""
    made = parser(__doc__)
    made.add_argument("--minutes", type=int, default=20, help="as many visits")
    made.add_argument("--seconds", type=float, default=60.0, help="of a visit")
    made.add_argument("--views", nargs="+", default=VIEWS)
    made.set_defaults(limit=24, tokens=64)
    return made.parse_args()


def main() -> None:
    """Run it; the last line of output is one JSON object."""
    args = arguments()
    prompts = [case.turns[0] for case in select(load_prompts(args.prompts), limit=args.limit)]
    command = serve_command(args.model, "auto", threads=args.threads, sequences=4, context=2048)
    seen = []
    print(line("visit", "view", "tab MiB", "nodes", "listeners", "server MiB", "answers"))
    with started(command) as server, browser() as shown, asking(server.url, prompts, args.tokens) as counts:
        for view, visit in visits(shown, server, args.views, args.minutes, args.seconds):
            seen.append((view, visit))
            figures = (figure(visit["heap_mib"], 2), figure(visit["nodes"], 0), figure(visit["listeners"], 0))
            print(line(len(seen), view, *figures, figure(visit["server_mib"]), len(counts)), flush=True)
    print(json.dumps({"growth": growth(seen), "answers": len(counts)}))


if __name__ == "__main__":
    run_benchmark(main)
