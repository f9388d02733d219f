"""What does the engine cost when it does not speculate?

Physics: `off` and a bare loop of llama_decode + argmax run the same forwards on the same weights, so the
difference is ours: the scheduler, sampling, text and events, for each token. Both run on one loaded model in
turns, `--repeat` times, each keeps its best time for the same number of tokens after the same prompt.
"""

from __future__ import annotations

import ctypes
import json
from time import perf_counter
from typing import Any

import numpy as np

from common import parser, run_benchmark
from foredraft import Engine, SamplingParams
from foredraft.backends.llamacpp.binding import lib

PROMPT = "Explain how a steam engine works, from the fire to the wheels."


def bare_loop(context: Any, vocab: int, tokens: list[int], count: int) -> tuple[list[int], float]:
    """Greedy decoding by hand: (tokens, milliseconds after the first token)."""
    lib.llama_memory_clear(lib.llama_get_memory(context), False)  # noqa: FBT003 - C
    batch = lib.llama_batch_init(max(512, len(tokens)), 0, 1)

    def decode(ids: list[int], start: int) -> int:
        batch.n_tokens = len(ids)
        for i, token in enumerate(ids):
            batch.token[i], batch.pos[i] = token, start + i
            batch.n_seq_id[i], batch.seq_id[i][0] = 1, 0
            batch.logits[i] = i == len(ids) - 1
        if lib.llama_decode(context, batch):
            raise RuntimeError("llama_decode failed")
        pointer = ctypes.cast(lib.llama_get_logits_ith(context, -1), ctypes.c_void_p).value
        row = np.ctypeslib.as_array((ctypes.c_float * vocab).from_address(pointer or 0))
        return int(row.argmax())

    made = [decode(tokens, 0)]
    began = perf_counter()
    while len(made) < count:
        made.append(decode(made[-1:], len(tokens) + len(made) - 1))
    elapsed = 1e3 * (perf_counter() - began)
    lib.llama_batch_free(batch)
    return made, elapsed


def main() -> None:
    """Run the benchmark; the last line of output is one JSON object."""
    arguments = parser(__doc__)
    arguments.add_argument("--repeat", type=int, default=5)
    args = arguments.parse_args()
    engine = Engine.load(
        args.model, speculate="off", threads=args.threads, remember=False, context_length=2048
    )
    native = engine.model._context  # type: ignore[attr-defined]
    tokens = engine.encode([{"role": "user", "content": PROMPT}])
    params = SamplingParams(max_tokens=args.tokens, ignore_eos=True)
    best = {"bare": float("inf"), "off": float("inf")}
    for _ in range(args.repeat):
        by_hand, bare_ms = bare_loop(native, engine.model.info.vocab_size, tokens, args.tokens)
        engine.model.release(0)
        engine._scheduler.cache.drop(0)
        result = engine.generate(tokens, params)
        if list(result.tokens) != by_hand:
            raise SystemExit("The engine and the bare loop disagree: there is a bug.")
        best["bare"] = min(best["bare"], bare_ms)
        best["off"] = min(best["off"], result.timings.predicted_ms)
    rounds = args.tokens - 1
    share = best["off"] / best["bare"] - 1
    extra = (best["off"] - best["bare"]) / rounds
    print(f"bare {best['bare'] / rounds:.3f} ms a token, off {best['off'] / rounds:.3f} ms a token")
    print(f"off costs {100 * share:.2f} % and {1e3 * extra:.0f} µs a round (limits: 3 %, 400 µs)")
    print(json.dumps({"overhead": round(share, 5), "ms_per_round": round(extra, 4), "rounds": rounds}))


if __name__ == "__main__":
    run_benchmark(main)
