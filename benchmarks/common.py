"""What the benchmarks share that `foredraft bench` does not: their arguments, and what they say to people."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

from foredraft.cache_folder import default_cache_dir
from foredraft.errors import ForedraftError
from foredraft.library import models_dir, resolve, usual_places


def parser(description: str | None) -> argparse.ArgumentParser:
    """Arguments that every benchmark takes."""
    made = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument(
        "--model",
        type=model_path,
        default=None,
        help="path or name of a model; default model if absent",
    )
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


def model_path(name: str | None) -> str:
    """The path of the model that `--model` names; of the default one for None. Raises ModelNotFoundError."""
    return str(resolve(name, models_dir(default_cache_dir()), usual_places()))


def run_benchmark(main: Callable[[], None]) -> None:
    """Run a benchmark. What cannot be done is told in words, with an exit code, as at the command line."""
    try:
        main()
    except ForedraftError as error:
        print(f"Error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        print("Stopped.", file=sys.stderr)
        sys.exit(130)


def progress(done: int, total: int, what: str) -> None:
    """One line on standard error, rewritten where it is a terminal."""
    end = "\r" if sys.stderr.isatty() else "\n"
    print(f"[{done}/{total}] {what:<60}", end=end, file=sys.stderr, flush=True)
