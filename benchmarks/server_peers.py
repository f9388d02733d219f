"""Foredraft's server beside llama.cpp's, as the package xllamacpp embeds it, on the same prompts in one
run.

Sides: `foredraft serve` with `--speculate off` and with `auto`; with `--bare` the same without Foredraft's
kernels, and with `--installation NAME=PYTHON` that of another Python; the peer without speculation and with
each of its n-gram types at its defaults. The same GGUF, threads, slots and context length for all; flash
attention and KV types are each tool's defaults; temperature 0. Each side is a process of its own, all of
them wait while one answers, in an order that turns from prompt to prompt. A side that takes processor time
while it waits is stopped between its turns, and the table says so.

With `--levels 1 4` first every prompt is asked alone, then four at a time. Two rates come of it, both by
the client's clock: *decode* is tokens after the first over the time since the first, *whole* is all tokens
over the time since the request was sent, its prompt included. Of `--repeat` passes the best counts. Each
pass and level begins with new processes, so nothing was learnt from the same prompts before. Prefix caching
is on everywhere, as all have it by default; as no process sees a prompt twice, it finds only what the chat
template puts in front of all of them.

Both run the llama.cpp of the same wheel, so what differs between the two "off" columns are Foredraft's
kernels and what a server adds.

    python benchmarks/server_peers.py --prompts FOLDER --bare

Writes server_peers.md and server_peers.json. Exit code 1 if Foredraft's own text differs or a request
fails.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common import model_path, parser, progress, run_benchmark
from foredraft.backends.cpu import physical_cores
from foredraft.backends.llamacpp.gguf_file import read_gguf
from foredraft.bench.live import WARM_UP, WARM_UP_TOKENS
from foredraft.bench.workloads import PromptCase, load_prompts, select
from foredraft.cli.units import counted
from server_client import Answer, chat_body, completion_body, new_client, stream_answer
from server_common import (
    FOREDRAFT_READY,
    Running,
    add_results,
    idle_shares,
    serve_command,
    started,
    write_json,
)
from server_peers_report import AUTO, PEER_OFF, Turn, as_markdown, is_ours, summaries, texts

PEER_TYPES = ("none", "ngram-simple", "ngram-map-k", "ngram-map-k4v", "ngram-mod", "ngram-cache")
PEER_READY = r"^peer on (http://\S+)$"
BARE = (
    "from foredraft.backends.llamacpp import kernels; kernels.leave_out('for comparison'); "
    "from foredraft.cli import main; main()"
)
"""A command line of Foredraft that computes with llama.cpp's own kernels."""

Body = Callable[[str, int], Mapping[str, Any]]
"""The request for an answer to a prompt, of that many tokens."""

SPINNING = 0.02
"""Of a core: a waiting server that takes more is stopped between its turns."""


@dataclass(frozen=True, slots=True)
class Side:
    """What takes part: its name, the command that serves it, and what it prints once it answers."""

    name: str
    command: tuple[str, ...]
    ready: str


def all_sides(args: argparse.Namespace, model: str, slots: int) -> list[Side]:
    """Foredraft's, then the peer's, which are named after its types."""
    made = []
    for name, foredraft in foredrafts(args).items():
        for setting in ("off", "auto"):
            command = serve_command(
                model,
                setting,
                threads=args.threads,
                sequences=slots,
                context=args.context,
                foredraft=foredraft,
            )
            made.append(Side(f"{name} {setting}", tuple(command), FOREDRAFT_READY))
    script = str(Path(__file__).with_name("server_peer_process.py"))
    for kind in args.types:
        command = [args.peer_python, script, model, kind, str(args.threads), str(slots), str(args.context)]
        made.append(Side(PEER_OFF if kind == "none" else kind, tuple(command), PEER_READY))
    return made


def foredrafts(args: argparse.Namespace) -> dict[str, Sequence[str]]:
    """The command of each Foredraft that takes part, by its name."""
    made: dict[str, Sequence[str]] = {"foredraft": (sys.executable, "-m", "foredraft")}
    if args.bare:
        made["bare"] = (sys.executable, "-c", BARE)
    for named in args.installation:
        name, _, python = named.partition("=")
        made[name] = (python, "-m", "foredraft")
    return made


def groups(cases: Sequence[PromptCase], size: int) -> list[list[PromptCase]]:
    """`size` prompts of one category at a time. A rest that does not fill a group is left out, unless it is
    all that the category has.
    """
    by_category: dict[str, list[PromptCase]] = {}
    for case in cases:
        by_category.setdefault(case.category, []).append(case)
    cut = (
        of_category[start : start + size]
        for of_category in by_category.values()
        for start in range(0, len(of_category), size)
    )
    return [group for group in cut if len(group) == size or len(by_category[group[0].category]) < size]


def body_for(model: Path) -> Body:
    """A chat, or plain text for a model without a chat template: each side would make up one of its own."""
    return chat_body if read_gguf(model).has_chat_template else completion_body


async def ask(url: str, bodies: Iterable[Mapping[str, Any]]) -> list[Answer]:
    """All of them at once."""
    async with new_client(url) as client:
        return await asyncio.gather(*(stream_answer(client, body) for body in bodies))


@contextmanager
def awake(server: Running, *, spins: bool) -> Iterator[None]:
    """The server may take processor time here; one that spins is stopped afterwards."""
    if spins:
        server.process.resume()
    try:
        yield
    finally:
        if spins:
            server.process.suspend()


def one_pass(
    sides: Sequence[Side],
    work: Sequence[Sequence[PromptCase]],
    body: Body,
    tokens: int,
    number: int,
    idle: dict[str, float],
) -> Iterator[Turn]:
    """Every group answered by every side, by new processes. `idle` gets what each takes while it waits."""
    with ExitStack() as stack:
        servers = [stack.enter_context(started(side.command, side.ready)) for side in sides]
        for server in servers:
            asyncio.run(ask(server.url, [body(WARM_UP[0]["content"], WARM_UP_TOKENS)]))
        for side, share in zip(sides, idle_shares(servers), strict=True):
            idle[side.name] = max(share, idle.get(side.name, 0.0))
        spins = [idle[side.name] > SPINNING for side in sides]
        for server in (server for server, spin in zip(servers, spins, strict=True) if spin):
            server.process.suspend()
        for at, group in enumerate(work):
            start = (at + number) % len(sides)
            for place in (*range(start, len(sides)), *range(start)):
                with awake(servers[place], spins=spins[place]):
                    answers = asyncio.run(
                        ask(servers[place].url, [body(case.turns[0], tokens) for case in group])
                    )
                ids = tuple(case.id for case in group)
                yield Turn(sides[place].name, number, group[0].category, ids, tuple(answers))
            progress(at + 1, len(work), f"pass {number + 1}, {len(group)} at once")


def arguments() -> argparse.Namespace:
    """What the command line says."""
    made = parser(__doc__)
    made.add_argument("--peer-python", default=sys.executable, help="a Python that has xllamacpp")
    made.add_argument("--bare", action="store_true", help="also Foredraft without its kernels")
    made.add_argument(
        "--installation", action="append", default=[], metavar="NAME=PYTHON", help="also another Foredraft"
    )
    made.add_argument("--types", nargs="+", default=list(PEER_TYPES), help="the peer's types of speculation")
    made.add_argument("--levels", type=int, nargs="+", default=[1, 4], help="prompts at once")
    made.add_argument("--repeat", type=int, default=2, help="passes, of which the best counts")
    made.add_argument("--context", type=int, default=2048, help="context of a slot, in tokens")
    add_results(made)
    args = made.parse_args()
    args.threads = args.threads or physical_cores()
    if "none" not in args.types:
        made.error("--types: 'none' is needed, the others are compared with it")
    return args


def main() -> None:
    """Run all levels; the last line of output is one JSON object."""
    args = arguments()
    model = args.model or model_path(None)
    cases = select(load_prompts(args.prompts), limit=args.limit)
    body = body_for(Path(model))
    idle: dict[str, float] = {}
    turns: dict[int, list[Turn]] = {}
    for clients in args.levels:
        sides = all_sides(args, model, clients)
        work = groups(cases, clients)
        turns[clients] = [
            turn
            for number in range(args.repeat)
            for turn in one_pass(sides, work, body, args.tokens, number, idle)
        ]
    sys.exit(closing(args, turns, idle, plain=body is completion_body))


def closing(
    args: argparse.Namespace,
    turns: Mapping[int, Sequence[Turn]],
    idle: Mapping[str, float],
    *,
    plain: bool,
) -> int:
    """Print and write the report; returns the exit code. `plain`: the prompts were continued as text."""
    found = summaries(turns)
    compared = texts(turns)
    spinning = [name for name, share in idle.items() if share > SPINNING]
    setting = (
        f"{counted(args.threads, 'thread')}, {args.context} tokens of context a slot, "
        f"{counted(args.tokens, 'token')} an answer"
        f"{', prompts continued as plain text (the model has no chat template)' if plain else ''}"
    )
    page = as_markdown(found, compared, f"{setting}, best of {args.repeat}", spinning)
    errors = [
        answer.error for some in turns.values() for turn in some for answer in turn.answers if answer.error
    ]
    ours = [row for row in compared if is_ours(row["side"])]
    different = sum(row["different"] + row["different_from_alone"] for row in ours)
    behind = [row for row in found if row["side"] == AUTO and (row["of_best_peer"] or 0.0) < 1.0]
    report = {"errors": errors, "idle": idle, "setting": setting, "rates": found, "texts": compared,
              "turns": {level: [turn.row() for turn in some] for level, some in turns.items()}}  # fmt: skip
    file = write_json(args.results, "server_peers", report)
    file.with_suffix(".md").write_text(page, encoding="utf-8")
    print(page, *errors[:5], f"written to {file.with_suffix('.md')}", sep="\n")
    names = [f"{row['clients']} × {row['category']}, {row['rate']}" for row in behind]
    print(json.dumps({"errors": len(errors), "different": different, "behind": names}))
    return 1 if errors or different else 0


if __name__ == "__main__":
    run_benchmark(main)
