"""Is `auto` of one source tree as fast as that of another? Replays in virtual time, attempts charged.

For each shipped curve and each order of the traces both trees replay the shipped traces: one request after
the other, and several at once, on a model that verifies drafts of different lengths in one forward (ragged)
and on one that needs several passes. One order alone moves the mean by 1 to 2 %, so take several.

    python -m lab.compare OLD NEW --seeds 5 --levels 1 4 8 --cache FOLDER

OLD and NEW are checkouts. What a tree gave is kept in the folder, by the content of its source, and not
computed again. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean, geometric_mean
from typing import Any

WORKER = Path(__file__).with_name("compare_worker.py")
CURVES = ("steep", "flat", "gpu", "cpu-q4_1", "cpu-q4_0", "cpu-f16", "moe")
ELSEWHERE = frozenset({"backends", "cli", "isolation", "library", "server"})
"""Folders whose source does not matter to a replay."""


@dataclass(frozen=True, slots=True)
class Job:
    """One replay. `requests`: at once. `seed`: of the order; 0 is the file's."""

    curve: str
    requests: int
    ragged: bool
    seed: int
    traces: str | None


@dataclass(frozen=True, slots=True)
class Found:
    """What a tree gave on a curve, over all orders."""

    speedup: float
    worst: float
    attempts: float


def fingerprint(tree: Path) -> str:
    """A hash of the source that replays depend on, and of the worker."""
    digest = hashlib.sha256(WORKER.read_bytes())
    package = tree / "src" / "foredraft"
    for path in sorted(package.rglob("*")):
        relative = path.relative_to(package)
        if path.suffix in {".py", ".json", ".gz"} and relative.parts[0] not in ELSEWHERE:
            digest.update(str(relative).encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def replay(tree: Path, mark: str, job: Job, cache: Path | None) -> dict[str, Any]:
    """What a tree gives, from the cache where it is known."""
    name = hashlib.sha256(json.dumps([mark, asdict(job)]).encode()).hexdigest()[:24]
    kept = cache / f"{name}.json" if cache else None
    if kept and kept.is_file():
        found: dict[str, Any] = json.loads(kept.read_text())
        return found
    environment = {**os.environ, "PYTHONPATH": str(tree / "src"), "PYTHONHASHSEED": "0"}
    done = subprocess.run(
        [sys.executable, str(WORKER), json.dumps(asdict(job))],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"{tree}, {job}:\n{done.stderr}")
    found = json.loads(done.stdout.splitlines()[-1])
    if kept:
        kept.parent.mkdir(parents=True, exist_ok=True)
        part = kept.with_suffix(f".{os.getpid()}")
        part.write_text(json.dumps(found))
        part.replace(kept)
    return found


def summary(replays: Iterable[Mapping[str, Any]]) -> Found:
    """Geometric mean over answers and orders, the worst answer in any order, the mean share of attempts."""
    replays = list(replays)
    speedups = [value for found in replays for value in found["speedups"].values()]
    return Found(geometric_mean(speedups), min(speedups), fmean(found["attempts"] for found in replays))


def compare(trees: Sequence[Path], args: argparse.Namespace) -> dict[str, Any]:
    """Run all replays, print the table, and return what the last line says."""
    marks = [fingerprint(tree) for tree in trees]
    ways = [(n, ragged) for n in args.levels for ragged in ((True,) if n == 1 else (True, False))]
    lines = [(curve, *way) for way in ways for curve in args.curves]
    jobs = [
        (side, Job(*line, seed, args.traces))
        for line in lines
        for side in (0, 1)
        for seed in range(args.seeds)
    ]
    with ThreadPoolExecutor(args.jobs) as pool:
        done = pool.map(lambda job: replay(trees[job[0]], marks[job[0]], job[1], args.cache), jobs)
        print(
            f"{'curve':<10}{'requests':<14}{'old':>7}{'new':>7}{'ratio':>8}{'worst':>8}{'':>7}{'attempts':>10}"
        )
        ratios: dict[str, dict[str, float]] = {}
        for curve, requests, ragged in lines:
            old, new = (summary([next(done) for _ in range(args.seeds)]) for _ in trees)
            way = "1" if requests == 1 else f"{requests} {'ragged' if ragged else 'in passes'}"
            ratios.setdefault(way, {})[curve] = round(new.speedup / old.speedup, 4)
            print(
                f"{curve:<10}{way:<14}{old.speedup:>7.3f}{new.speedup:>7.3f}{new.speedup / old.speedup:>8.3f}"
                f"{old.worst:>8.3f}{new.worst:>7.3f}{old.attempts:>10.3f}{new.attempts:>7.3f}",
                flush=True,
            )
    means = {way: round(geometric_mean(by_curve.values()), 4) for way, by_curve in ratios.items()}
    holds = all(mean >= (0.99 if way == "1" else 0.98) for way, mean in means.items())
    return {"ratios": ratios, "means": means, "holds": holds}


def arguments() -> argparse.Namespace:
    """What the command line says."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("old", type=Path, help="a checkout")
    parser.add_argument("new", type=Path, help="another one")
    parser.add_argument("--curves", nargs="+", default=CURVES, metavar="CURVE")
    parser.add_argument("--seeds", type=int, default=5, help="orders of the traces")
    parser.add_argument("--levels", type=int, nargs="+", default=[1], help="requests at once")
    parser.add_argument("--traces", help="a file of traces in place of those that ship")
    parser.add_argument("--cache", type=Path, help="folder of what was replayed before")
    parser.add_argument("--jobs", type=int, default=2, help="replays at a time")
    return parser.parse_args()


if __name__ == "__main__":
    given = arguments()
    print(json.dumps(compare([given.old.resolve(), given.new.resolve()], given)))
