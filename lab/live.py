"""What the laboratory's live measurements share: engines on one model, rows of all sides, and how it ends."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from foredraft import Engine, ForedraftError, SamplingParams
from foredraft.bench.live import measure, warm_up
from foredraft.bench.passes import ENOUGH, Passes
from foredraft.bench.results import Row
from foredraft.bench.sides import Side
from foredraft.bench.workloads import PromptCase, load_prompts, select


def arguments(description: str | None) -> argparse.ArgumentParser:
    """What every live measurement takes."""
    made = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument("model", nargs="?", help="a model; the default one if absent")
    made.add_argument("--prompts", type=Path, help="JSONL file or folder; the ones that ship if absent")
    made.add_argument("--limit", type=int, default=0, help="that many prompts, evenly from all categories")
    made.add_argument("--tokens", type=int, default=256, help="most tokens of an answer")
    made.add_argument("--repeat", type=int, default=2, help="passes over the prompts")
    made.add_argument("--threads", type=int, default=0)
    return made


@contextmanager
def engines(args: argparse.Namespace, settings: Sequence[str]) -> Iterator[dict[str, Engine]]:
    """An engine for each setting, all on one model, nothing remembered."""
    loaded = Engine.load_together(args.model, settings, threads=args.threads, remember=False)
    with ExitStack() as stack:
        for engine in loaded:
            stack.enter_context(engine)
        yield dict(zip(settings, loaded, strict=True))


def cases(args: argparse.Namespace) -> list[PromptCase]:
    """The prompts."""
    return select(load_prompts(args.prompts), limit=args.limit)


def measured(args: argparse.Namespace, sides: Sequence[Side], prompts: Sequence[PromptCase]) -> Iterator[Row]:
    """The answers of all sides, as they come; those too long for a side are left out at the end of it."""
    warm_up(sides)
    passes = Passes(prompts, args.repeat, min(ENOUGH, args.tokens))
    for row in measure(sides, passes, SamplingParams(max_tokens=args.tokens)):
        print(f"{row.setting:<24} {row.prompt}", end="\r", file=sys.stderr, flush=True)
        yield row


def run(main: Callable[[], None]) -> None:
    """Run a script. What cannot be done is told in words, with an exit code, as at the command line."""
    try:
        main()
    except ForedraftError as error:
        print(f"Error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.exit(130)
