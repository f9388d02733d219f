"""Does a run accept of a head what `foredraft draft score` says? By depth, for one head and its model.

`foredraft draft score` reads a model's answers once, and replays the rounds that a run would have. Here the
same prompts are then answered by an engine that drafts with the head in every round (`--speculate
heads:model=HEAD,max=K`), alone, with the same seeds: each draft token that it accepts is counted at its
depth. Of a draft of K tokens we compare, at every depth, the share of drafts accepted up to there
(survival), and the share of tokens accepted of those whose ancestors were. The largest difference is printed;
that of the second kind only over depths that at least `--least` drafts reached, since a share of few is no
figure. Acceptance does not depend on how fast the machine is, so it may be busy. Models that verify trees
accept more than is scored: drafts are chains there. The last line is one JSON object.

    python benchmarks/head_score.py HEAD [--model MODEL] [--limit 24] [--tokens 128] [--lengths 1 4 8]
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from common import model_path, parser, progress, run_benchmark
from foredraft import Engine
from foredraft.bench.workloads import load_prompts, select
from foredraft.errors import ConfigError

SEED = 1


def main() -> None:
    """Score, run, compare."""
    arguments = parser(__doc__)
    arguments.add_argument("head", type=Path, help="the head's file")
    arguments.add_argument("--temperature", type=float, default=0.8, help="beside 0; 0 for that alone")
    arguments.add_argument("--lengths", type=int, nargs="+", default=[1, 4, 8], help="tokens of drafts")
    arguments.add_argument("--least", type=int, default=100, help="drafts that a share is of, at least")
    arguments.set_defaults(tokens=128, limit=24)
    args = arguments.parse_args()
    args.model = args.model or model_path(None)
    if not args.head.exists():
        raise ConfigError(f"There is no head {args.head}.")
    rows = []
    with TemporaryDirectory() as cache:
        rules = {rule["temperature"]: rule for rule in scored(args)["rules"] if rule["rule"] == "match"}
        for length in args.lengths:
            for temperature, rule in rules.items():
                rows.append(compared(args, Path(cache), length, temperature, rule))
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


def compared(
    args: argparse.Namespace, cache: Path, length: int, temperature: float, rule: dict[str, Any]
) -> dict[str, Any]:
    """A run with drafts of one length, beside the score's figures for it: pairs of (scored, live)."""
    drafts, accepted = 0, [0] * length
    cases = select(load_prompts(args.prompts), limit=args.limit)
    speculate = f"heads:model={args.head.resolve()},max={length}"
    options: dict[str, Any] = {"threads": args.threads, "remember": False, "probe": False}
    with Engine.load(args.model, speculate=speculate, cache_dir=cache, **options) as engine:
        if engine.notes:
            raise ConfigError("; ".join(engine.notes))
        for number, case in enumerate(cases):
            prompt = [{"role": "user", "content": case.turns[0]}]
            answer = engine.generate(
                prompt, max_tokens=args.tokens, temperature=temperature, seed=SEED + number
            )
            drafts += answer.speculation.drafters["heads"].drafts
            for depth, count in enumerate(answer.speculation.accepted_by_depth):
                accepted[depth] += count
            progress(number + 1, len(cases), f"drafts of {length} at temperature {temperature:g}")
    reached = [drafts, *accepted[:-1]]
    survival = [share or 0.0 for share in rule["survival"][length - 1]]
    before = [1.0, *survival[:-1]]
    pairs = [
        (own / of if of else 0.0, count / enough if enough else 0.0)
        for own, of, count, enough in zip(survival, before, accepted, reached, strict=True)
    ]
    known = [abs(a - b) for (a, b), count in zip(pairs, reached, strict=True) if count >= args.least]
    return {
        "length": length,
        "temperature": temperature,
        "drafts": drafts,
        "reached": reached,
        "survival": (survival, [count / drafts for count in accepted]),
        "by_depth": pairs,
        "gaps": known,
    }


def show(row: dict[str, Any]) -> None:
    """One line for each depth."""
    print(f"drafts of {row['length']}, temperature {row['temperature']:g}: {row['drafts']} in the run")
    for depth, (scored_share, live) in enumerate(row["by_depth"], 1):
        said, was = (shares[depth - 1] for shares in row["survival"])
        print(
            f"  depth {depth}: accepted {live:.1%} of {row['reached'][depth - 1]} (scored "
            f"{scored_share:.1%}); survival {was:.1%} (scored {said:.1%})",
            flush=True,
        )


if __name__ == "__main__":
    run_benchmark(main)
