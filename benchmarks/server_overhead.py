"""What does the server cost one client, against `foredraft run`?

Physics: both run the same engine over the same prompts; between the engine's tokens and the client the server
has a thread, an event loop, JSON and a socket, and the client shares the processor with it. For each
prompt, with speculation off and with `auto`, the engine answers in this process the way `foredraft run`
does it, and `foredraft serve` streams the same answer to one client, in turns, `--repeat` times. Each keeps
its best rate: tokens after the first over the time from the first piece of text to the last, by the reader's
clock. The overhead is 1 − the geometric mean of (rate through the server ÷ rate of the engine); the target is
at most 5 %.

    python benchmarks/server_overhead.py --limit 16

Exit code 1 if a text differs or a request fails.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import Any

from common import parser, progress, run_benchmark
from foredraft import Engine, SamplingParams
from foredraft.bench.live import WARM_UP, WARM_UP_TOKENS
from foredraft.bench.workloads import PromptCase, load_prompts, select
from foredraft.cli.paths import cache_dir
from foredraft.types import FinishEvent
from server_client import Answer, chat_body, new_client, stream_answer
from server_common import Running, add_results, figure, mean_ratio, serve_command, started, table, write_json

SETTINGS = ("off", "auto")
WAYS = ("run", "serve")
WANTED = 0.05

Ask = Callable[[str, int], Answer]
Found = dict[tuple[str, str], list[Answer]]
"""The answers to one prompt by (way, setting)."""


def by_engine(engine: Engine) -> Ask:
    """Answers of an engine in this process, streamed as `foredraft run` streams them."""

    def ask(prompt: str, tokens: int) -> Answer:
        answer = Answer(time.perf_counter())
        messages = [{"role": "user", "content": prompt}]
        for event in engine.stream(messages, SamplingParams(max_tokens=tokens)):
            if event.text:
                answer.text += event.text
                answer.arrivals.append((time.perf_counter(), len(answer.text)))
            if isinstance(event, FinishEvent):
                answer.tokens, answer.error = event.usage.completion_tokens, event.error or ""
        return answer

    return ask


def by_server(server: Running) -> Ask:
    """Answers of a server, over a connection that is made anew for each."""

    async def asked(prompt: str, tokens: int) -> Answer:
        async with new_client(server.url) as client:
            return await stream_answer(client, chat_body(prompt, tokens))

    return lambda prompt, tokens: asyncio.run(asked(prompt, tokens))


def measure(
    asks: dict[tuple[str, str], Ask], cases: Sequence[PromptCase], tokens: int, repeat: int
) -> Iterator[tuple[PromptCase, Found]]:
    """Every prompt answered in every way, in an order that turns."""
    for number, case in enumerate(cases):
        found: Found = {key: [] for key in asks}
        for again in range(repeat):
            for key in list(asks) if (number + again) % 2 == 0 else reversed(asks):
                found[key].append(asks[key](case.turns[0], tokens))
        progress(number + 1, len(cases), case.id)
        yield case, found


def row(case: PromptCase, found: Found) -> dict[str, Any]:
    """A prompt's best rates in tokens a second, their ratios, and whether all texts are the same."""
    best = {key: max((a.decode_rate or 0.0 for a in answers), default=0.0) for key, answers in found.items()}
    ratios = {
        setting: best["serve", setting] / best["run", setting] if best["run", setting] else None
        for setting in SETTINGS
    }
    answers = [answer for some in found.values() for answer in some]
    return {
        "prompt": case.id,
        "rates": {f"{way} {setting}": best[way, setting] for way in WAYS for setting in SETTINGS},
        "ratios": ratios,
        "different": len({answer.text for answer in answers}) > 1,
        "errors": [answer.error for answer in answers if answer.error],
    }


def arguments() -> argparse.Namespace:
    """What the command line says."""
    made = parser(__doc__)
    made.add_argument(
        "--repeat", type=int, default=3, help="answers of each kind, of which the fastest counts"
    )
    add_results(made)
    made.set_defaults(limit=16)
    return made.parse_args()


def main() -> None:
    """Run the benchmark; the last line of output is one JSON object."""
    args = arguments()
    cases = select(load_prompts(args.prompts), limit=args.limit)
    asks: dict[tuple[str, str], Ask] = {}
    loading = {"threads": args.threads, "context_length": 2048, "remember": False, "cache_dir": cache_dir()}
    serving = {"threads": args.threads, "context": 2048, "sequences": 1}
    with ExitStack() as stack:
        for setting in SETTINGS:
            server = stack.enter_context(started(serve_command(args.model, setting, **serving)))
            engine = stack.enter_context(Engine.load(args.model, speculate=setting, **loading))
            asks["serve", setting], asks["run", setting] = by_server(server), by_engine(engine)
        for ask in asks.values():
            ask(WARM_UP[0]["content"], WARM_UP_TOKENS)
        rows = [row(case, found) for case, found in measure(asks, cases, args.tokens, args.repeat)]
    sys.exit(closing(args, rows))


def closing(args: argparse.Namespace, rows: Sequence[dict[str, Any]]) -> int:
    """Print and write the report; returns the exit code."""
    names = list(rows[0]["rates"])
    head = ["prompt", *names, *(f"serve ÷ run, {setting}" for setting in SETTINGS)]
    lines = [
        [one["prompt"], *(figure(one["rates"][name]) for name in names),
         *(figure(one["ratios"][setting], 3) for setting in SETTINGS)]
        for one in rows
    ]  # fmt: skip
    print(table(head, lines))
    means = {setting: mean_ratio(one["ratios"][setting] for one in rows) for setting in SETTINGS}
    overhead = {setting: None if mean is None else 1 - mean for setting, mean in means.items()}
    for setting, share in overhead.items():
        percent = None if share is None else 100 * share
        print(f"{setting}: the server costs {figure(percent)} % ({100 * WANTED:.0f} % at most are wanted)")
    different = sum(one["different"] for one in rows)
    errors = [error for one in rows for error in one["errors"]]
    report = {"overhead": overhead, "different": different, "errors": errors, "threads": args.threads,
              "tokens": args.tokens, "prompts": rows}  # fmt: skip
    print(*errors[:5], f"written to {write_json(args.results, 'server_overhead', report)}", sep="\n")
    print(json.dumps({"overhead": overhead, "different": different, "errors": len(errors)}))
    return 1 if different or errors else 0


if __name__ == "__main__":
    run_benchmark(main)
