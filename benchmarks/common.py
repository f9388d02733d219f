"""What the benchmarks share that `foredraft bench` does not: their arguments, and a line of progress."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path


def parser(description: str | None) -> argparse.ArgumentParser:
    """Arguments that every benchmark takes."""
    made = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument("--model", default=None, help="GGUF file or pulled name; default model if absent")
    made.add_argument(
        "--prompts",
        type=Path,
        default=None,
        help="JSONL file, or a folder of them; the ones that ship if absent",
    )
    made.add_argument(
        "--limit", type=int, default=0, help="use this many prompts, evenly from all categories"
    )
    made.add_argument("--threads", type=int, default=0)
    made.add_argument("--tokens", type=int, default=200)
    return made


def progress(done: int, total: int, what: str) -> None:
    """One line on standard error, rewritten where it is a terminal."""
    end = "\r" if sys.stderr.isatty() else "\n"
    print(f"[{done}/{total}] {what:<60}", end=end, file=sys.stderr, flush=True)
