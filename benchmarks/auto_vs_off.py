"""Is `auto` faster than plain decoding, and never slower?

Physics: a plain round is one forward over one row, bound by reading the weights (or, for a small model on a
CPU, by fixed work per forward). A speculative round pays V(1 + draft) for 1 + accepted tokens. The ratio of
decode rates on the same prompt, with the same tokens as output, is the speedup; prefill is left out.

Both engines are loaded at once and take turns on every prompt, `--repeat` times each in alternating order;
each side keeps its best time, because on a shared machine noise only ever adds. Nothing is remembered on
disk.
The planner of `auto` carries what it learnt from prompt to prompt, as it does in use.
"""

from __future__ import annotations

import json
from statistics import geometric_mean

from common import PromptCase, by_category, load_prompts, parser, print_table, progress
from foretoken import Completion, Engine, SamplingParams


def main() -> None:
    """Run the benchmark; the last line of output is one JSON object."""
    arguments = parser(__doc__)
    arguments.add_argument("--repeat", type=int, default=2)
    arguments.add_argument("--speculate", default="auto")
    arguments.add_argument("--temperature", type=float, default=0.0)
    args = arguments.parse_args()
    cases = load_prompts(args.prompts, args.limit)
    params = SamplingParams(temperature=args.temperature, seed=1, max_tokens=args.tokens)
    engines = {
        name: Engine.load(
            args.model, speculate=name, threads=args.threads, remember=False, context_length=4096
        )
        for name in ("off", args.speculate)
    }
    for engine in engines.values():
        engine.generate("Warm up the caches and the clock.", max_tokens=32, ignore_eos=True)
    ratios: list[tuple[PromptCase, float]] = []
    rates: dict[str, list[float]] = {name: [] for name in engines}
    different = 0
    for number, case in enumerate(cases, 1):
        best, same = measure(engines, case, params, args.repeat)
        different += not same
        for name, rate in best.items():
            rates[name].append(rate)
        ratio = best[args.speculate] / best["off"]
        ratios.append((case, ratio))
        so_far = geometric_mean([value for _, value in ratios])
        progress(number, len(cases), f"{case.id} {ratio:.3f}  geomean {so_far:.3f}")
    print()
    table = by_category(ratios)
    print_table(table)
    worst = sorted(ratios, key=lambda pair: pair[1])[:5]
    print("slowest:", ", ".join(f"{case.id} {ratio:.3f}" for case, ratio in worst))
    print(f"prompts whose tokens differ: {different}")
    means = {name: round(geometric_mean(values), 2) for name, values in rates.items()}
    print(json.dumps({"speedup": table, "tokens_per_second": means, "different": different}))


def measure(
    engines: dict[str, Engine], case: PromptCase, params: SamplingParams, repeat: int
) -> tuple[dict[str, float], bool]:
    """Best decode rate (tokens/s) of each engine, and whether their tokens are equal."""
    best = dict.fromkeys(engines, 0.0)
    tokens: set[tuple[int, ...]] = set()
    for turn in range(repeat):
        order = list(engines) if turn % 2 == 0 else list(reversed(engines))
        for name in order:
            result = engines[name].generate(case.messages, params)
            best[name] = max(best[name], rate(result))
            tokens.add(result.tokens)
    return best, len(tokens) == 1


def rate(result: Completion) -> float:
    """Tokens per second after the first one; very short answers have no rate worth comparing."""
    if result.timings.predicted_n < 2:
        return 1.0
    return 1e3 * (result.timings.predicted_n - 1) / result.timings.predicted_ms


if __name__ == "__main__":
    main()
