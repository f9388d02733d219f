"""Does speculation change a single token? Every drafter against `off`, on real prompts.

Prompts × (every drafter and `auto`) × temperature 0 and 0.8 with fixed seeds: the tokens must be equal to
`--speculate off`, token for token. A share of the prompts is padded past 1,024 tokens, where llama.cpp's
attention takes other paths than at the start. With `--concurrent N` the same prompts run through N sequences
at once and are compared with each prompt run alone. With `--bare` llama.cpp computes with its own kernels,
as where Foredraft's cannot be used. The default model also drafts for itself: at temperature
0 its acceptance must be 100 %. Exit code 1 if anything differs.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

from common import model_path, parser, progress, run_benchmark
from foredraft import Completion, Engine, SamplingParams
from foredraft.backends.llamacpp import kernels
from foredraft.bench.workloads import PromptCase, load_prompts, select
from foredraft.registry import drafter_names

LONG = 1000


def main() -> None:
    """Run the comparison; the last line of output is one JSON object."""
    arguments = parser(__doc__)
    arguments.add_argument("--temperatures", type=float, nargs="+", default=[0.0, 0.8])
    arguments.add_argument("--concurrent", type=int, default=0, help="also run this many at once")
    arguments.add_argument("--only", nargs="*", help="these speculation strings instead of all")
    arguments.add_argument("--bare", action="store_true", help="without Foredraft's kernels")
    args = arguments.parse_args()
    if args.bare:
        kernels.leave_out("for comparison")
    cases = select(load_prompts(args.prompts), limit=args.limit or 40)
    model = args.model or model_path(None)
    specs = args.only or ["auto", *map(stage_for(model), drafter_names())]
    prompts = encode_all(model, args.threads, cases)
    report: dict[str, dict[str, float]] = {}
    plain = run_all("off", model, args, prompts, 1)
    work = [(spec, 1) for spec in specs]
    if args.concurrent:
        work += [(spec, args.concurrent) for spec in ["off", *specs]]
    for spec, at_once in work:
        results = run_all(spec, model, args, prompts, at_once)
        report[f"{spec} x{at_once}"] = compare(spec, plain, results)
        print(f"{spec} x{at_once}: {report[f'{spec} x{at_once}']}", flush=True)
    different = sum(int(row["different"]) for row in report.values())
    deepest = max(
        result.usage.prompt_tokens + result.usage.completion_tokens
        for row in plain.values()
        for result in row
    )
    print(f"deepest context: {deepest} tokens; texts that differ: {different}")
    result = {"different": different, "deepest": deepest, "kernels": kernels.describe(), "runs": report}
    print(json.dumps(result))
    sys.exit(1 if different else 0)


def stage_for(model: str):  # type: ignore[no-untyped-def]
    """The speculation string that exercises a drafter: the model drafts for itself."""
    return lambda name: f"draft-model:model={model},max=8" if name == "draft-model" else name


def encode_all(model: str, threads: int, cases: Sequence[PromptCase]) -> list[list[int]]:
    """Token ids of the prompts; every third one is padded with the texts of others to past 1,000 tokens."""
    with Engine.load(model, speculate="off", threads=threads, remember=False, context_length=8192) as engine:
        prompts = []
        for number, case in enumerate(cases):
            text, other = case.turns[0], number
            while number % 3 == 0 and len(engine.encode(text)) < LONG:
                other = (other + 1) % len(cases)
                text = f"{cases[other].turns[0]}\n\n{text}"
            prompts.append(engine.encode([{"role": "user", "content": text}])[:1700])
    return prompts


def run_all(
    spec: str, model: str, args: object, prompts: Sequence[Sequence[int]], at_once: int
) -> dict[float, list[Completion]]:
    """Completions of all prompts at each temperature."""
    tokens, temperatures, threads = args.tokens, args.temperatures, args.threads  # type: ignore[attr-defined]
    results: dict[float, list[Completion]] = {temperature: [] for temperature in temperatures}
    with Engine.load(
        model, speculate=spec, threads=threads, remember=False, context_length=2048, sequences=at_once
    ) as engine:
        for first in range(0, len(prompts), at_once):
            group = prompts[first : first + at_once]
            for temperature, made in results.items():
                ids = [
                    engine.add(prompt, sampling(temperature, first + i, tokens), prediction=prompt[-200:])
                    for i, prompt in enumerate(group)
                ]
                made.extend(engine.run(ids))
            progress(first + len(group), len(prompts), f"{spec} x{at_once}")
    return results


def sampling(temperature: float, number: int, tokens: int) -> SamplingParams:
    """Fixed seeds, so that both sides sample with the same noise."""
    return SamplingParams(temperature=temperature, seed=1000 + number, max_tokens=tokens)


def compare(
    spec: str, plain: dict[float, list[Completion]], drafted: dict[float, list[Completion]]
) -> dict[str, float]:
    """How many texts differ, and how much was drafted and accepted."""
    row = {"texts": 0, "different": 0, "tokens": 0, "drafted": 0, "accepted": 0}
    for temperature, results in drafted.items():
        for a, b in zip(plain[temperature], results, strict=True):
            row["texts"] += 1
            row["different"] += a.tokens != b.tokens
            row["tokens"] += len(b.tokens)
            row["drafted"] += b.timings.draft_n
            row["accepted"] += b.timings.draft_n_accepted
        if spec.startswith("draft-model") and temperature == 0:
            drafted_n = sum(result.timings.draft_n for result in results)
            accepted_n = sum(result.timings.draft_n_accepted for result in results)
            row["self_acceptance_at_0"] = round(accepted_n / max(1, drafted_n), 6)  # type: ignore[assignment]
    return {**row}


if __name__ == "__main__":
    run_benchmark(main)
