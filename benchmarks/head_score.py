"""Does a run have of a head what `foredraft draft score` says? By depth, for one head and its model.

`foredraft draft score` reads a model's answers once, replays the rounds that a run would have, and times a
few rounds of each length. Here the same prompts are then answered with the same seeds by an engine that
drafts with the head in every round (`--speculate heads:model=HEAD,max=K`), in turns with plain decoding.

- *Acceptance*: of a draft of K tokens we compare, at every depth, the share of drafts accepted up to there
  (survival), and the share of tokens accepted of those whose ancestors were. The largest difference is
  printed; that of the second kind over depths that `--least` drafts reached, since a share of few is no
  figure. It does not depend on how fast the machine is. Models that verify trees accept more than is scored:
  drafts are chains there.
- *Speed* over plain decoding, as it was said and as it was. On a machine that others use both vary.

The last line of stdout is one JSON object.

    python benchmarks/head_score.py HEAD [--model MODEL] [--limit 24] [--tokens 128] [--lengths 1 4 8]
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from common import model_path, parser, progress, run_benchmark
from foredraft import Engine, SamplingParams
from foredraft.bench.results import Sample
from foredraft.bench.sides import EngineAnswer
from foredraft.bench.slices import in_slices, turn_seconds
from foredraft.bench.workloads import load_prompts, select
from foredraft.errors import ConfigError

SEED = 1


def main() -> None:
    """Score, run, compare."""
    arguments = parser(__doc__)
    arguments.add_argument("head", type=Path, help="the head's file")
    arguments.add_argument("--temperature", type=float, default=0.8, help="beside 0; 0 for that alone")
    arguments.add_argument("--lengths", type=int, nargs="+", default=[1, 4, 8], help="of drafts, 1 to 8")
    arguments.add_argument("--least", type=int, default=100, help="drafts that a share is of, at least")
    arguments.set_defaults(tokens=128, limit=24)
    args = arguments.parse_args()
    args.model = args.model or model_path(None)
    if not args.head.exists():
        raise ConfigError(f"There is no head {args.head}.")
    if not all(1 <= length <= 8 for length in args.lengths):
        raise ConfigError("Drafts of 1 to 8 tokens are scored.")
    rows = []
    said = scored(args)
    print(said["auto"]["text"], flush=True)
    for rule in said["rules"]:
        if rule["rule"] == "match":
            for length in args.lengths:
                rows.append(compared(args, length, rule))
                show(rows[-1])
    survival = max(abs(a - b) for row in rows for a, b in zip(*row["survival"], strict=True))
    by_depth = max((gap for row in rows for gap in row["gaps"]), default=0.0)
    print(f"largest difference: {survival:.4f} of survival, {by_depth:.4f} of acceptance by depth")
    print(json.dumps({"head": args.head.name, "survival": survival, "by_depth": by_depth, "rows": rows}))


def scored(args: argparse.Namespace) -> dict[str, Any]:
    """What the command prints. Raises ConfigError where it fails."""
    command = [sys.executable, "-m", "foredraft", "draft", "score", args.model, str(args.head), "--json"]
    command += ["--limit", str(args.limit), "-n", str(args.tokens), "-t", str(args.threads)]
    command += ["--seed", str(SEED), "--temperature", str(args.temperature)]
    if args.prompts is not None:
        command += ["--prompts", str(args.prompts)]
    ran = subprocess.run(command, check=False, stdout=subprocess.PIPE, text=True)
    if ran.returncode:
        raise ConfigError("'foredraft draft score' failed.")
    found: dict[str, Any] = json.loads(ran.stdout)
    return found


def answered(args: argparse.Namespace, length: int, temperature: float) -> Iterator[dict[str, Sample]]:
    """The answers to all prompts, plain and with drafts, in turns."""
    cases = select(load_prompts(args.prompts), limit=args.limit)
    drafting = f"heads:model={args.head.resolve()},max={length}"
    options: dict[str, Any] = {"threads": args.threads, "remember": False, "probe": False}
    with TemporaryDirectory() as cache:
        engines = Engine.load_together(args.model, ["off", drafting], cache_dir=Path(cache), **options)
        if engines[1].notes:
            raise ConfigError("; ".join(engines[1].notes))
        sides = dict(zip(("plain", "drafting"), engines, strict=True))
        seconds = turn_seconds(None)
        for number, case in enumerate(cases):
            params = SamplingParams(temperature=temperature, seed=SEED + number, max_tokens=args.tokens)
            begun = {}
            for name, engine in sides.items():
                prompt = engine.encode([{"role": "user", "content": case.turns[0]}])
                begun[name] = EngineAnswer(engine.stream(prompt, params), prompt)
            found = dict(in_slices(begun, seconds))
            seconds = turn_seconds(found["plain"].rate)
            progress(number + 1, len(cases), f"drafts of {length} at temperature {temperature:g}")
            yield found
        for engine in engines:
            engine.close()


def compared(args: argparse.Namespace, length: int, rule: dict[str, Any]) -> dict[str, Any]:
    """A run with drafts of one length, beside the score's figures for it: pairs of (scored, live)."""
    drafts, accepted = 0, [0] * length
    ms, tokens = {"plain": 0.0, "drafting": 0.0}, {"plain": 0, "drafting": 0}
    for found in answered(args, length, rule["temperature"]):
        for name, sample in found.items():
            ms[name] += sample.decode_ms
            tokens[name] += sample.count - 1
        drafts += found["drafting"].drafts
        for depth, count in enumerate(found["drafting"].accepted_by_depth):
            accepted[depth] += count
    reached = [drafts, *accepted[:-1]]
    survival = [share or 0.0 for share in rule["survival"][length - 1]]
    before = [1.0, *survival[:-1]]
    pairs = [
        (own / of if of else 0.0, count / enough if enough else 0.0)
        for own, of, count, enough in zip(survival, before, accepted, reached, strict=True)
    ]
    live = (ms["plain"] / tokens["plain"]) / (ms["drafting"] / tokens["drafting"])
    return {
        "length": length,
        "temperature": rule["temperature"],
        "drafts": drafts,
        "reached": reached,
        "survival": (survival, [count / drafts for count in accepted]),
        "by_depth": pairs,
        "gaps": [abs(a - b) for (a, b), count in zip(pairs, reached, strict=True) if count >= args.least],
        "speed": (rule["speedup"][length - 1], live),
    }


def show(row: dict[str, Any]) -> None:
    """A line for the speed, and one for each depth."""
    said, was = row["speed"]
    print(
        f"drafts of {row['length']}, temperature {row['temperature']:g}: {row['drafts']} in the run; speed "
        f"{was:.2f} (scored {'–' if said is None else f'{said:.2f}'})"
    )
    for depth, (share, live) in enumerate(row["by_depth"], 1):
        up_to, alive = (shares[depth - 1] for shares in row["survival"])
        print(
            f"  depth {depth}: accepted {live:.1%} of {row['reached'][depth - 1]} (scored {share:.1%}); "
            f"survival {alive:.1%} (scored {up_to:.1%})",
            flush=True,
        )


if __name__ == "__main__":
    run_benchmark(main)
