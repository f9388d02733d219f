"""What the model-free drafters cost: time to draft, to observe and to start, and memory, at a long history.

A drafter runs between two forwards of the target, so each microsecond it takes is lost from decoding. What it
should not depend on is the length of the history. So every drafter gets one of 100,000 tokens and then 600
more, committed as the match rule would commit them (the accepted part of its draft and one token), and we
take

- *draft µs*: the median time of a `draft` call, over all calls and over those that gave a draft;
- *observe µs*: the median over rounds of an `observe` call's time ÷ the tokens it was told of;
- *start ms*: the best of three `start` calls on the whole prompt;
- *memory MB*: what `start` and the rounds leave allocated, as tracemalloc counts it (numpy included), in a
  run of its own because tracing slows everything down;
- *hit %*: the share of the 600 tokens that came out of a draft. It says that time went into real work; it
  is a property of this synthetic text, not of a model.

The text mixes new tokens of a Zipf distribution over 32,000 ids with passages of 10 to 300 tokens copied from
anywhere earlier, in which one token in fifty is changed. Drafters that want to hear of the target's likeliest
next tokens are told of random ones, for each row. With `--trees` they draft for a model that verifies trees.
The last line of stdout is one JSON object.

    python benchmarks/drafters.py [--tokens 100000] [--trees] [drafter …]
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import time
import tracemalloc
from dataclasses import dataclass

import numpy as np

from common import run_benchmark
from foredraft.config import Stage
from foredraft.protocols import Drafter, RequestView
from foredraft.registry import create_drafter, drafter_names
from foredraft.testing import FakeModel, drafter_context
from foredraft.types import DraftLimit, Outcome

VOCABULARY = 32_000
GENERATED = 600
LIMIT = 64
OPTIONS = {"ngram-mod": {"min": "0"}}


def synthetic_text(length: int, seed: int = 0) -> list[int]:
    """Zipf-distributed tokens and repeated passages, about half and half."""
    rng = np.random.default_rng(seed)
    text = np.empty(length, dtype=np.int64)
    filled = 0
    while filled < length:
        size = min(int(rng.integers(10, 300)), length - filled)
        run = (rng.zipf(1.2, size) - 1) % VOCABULARY
        if filled > size and rng.random() < 0.5:
            start = int(rng.integers(0, filled - size))
            changed = rng.random(size) < 0.02
            run = np.where(changed, run, text[start : start + size])
        text[filled : filled + size] = run
        filled += size
    return [int(token) for token in text]


@dataclass
class Times:
    """Seconds of each call."""

    drafts: list[float]
    hits: list[float]
    observes: list[float]
    accepted: int = 0


def model_free() -> list[str]:
    """The drafters without a network."""
    return [name for name in drafter_names() if name not in ("draft-model", "heads")]


def new_drafter(name: str, *, trees: bool) -> Drafter:
    return create_drafter(
        Stage(name, OPTIONS.get(name, {})), drafter_context(FakeModel(VOCABULARY, trees=trees))
    )


def new_request(text: list[int], prompt: int) -> RequestView:
    """The prediction is what will come, with one token in fifty wrong."""
    prediction = [
        (token + 1) % VOCABULARY if i % 50 == 49 else token for i, token in enumerate(text[prompt:])
    ]
    return RequestView(id=1, tokens=text[:prompt], prompt_length=prompt, prediction=tuple(prediction))


def rounds(drafter: Drafter, request: RequestView, text: list[int]) -> Times:
    times = Times([], [], [])
    limit = DraftLimit(LIMIT)
    while len(request.tokens) < len(text):
        position = len(request.tokens)
        begun = time.perf_counter()
        draft = drafter.draft([(request, limit)])[0]
        times.drafts.append(time.perf_counter() - begun)
        accepted, parent = 0, -1
        if draft is not None:
            times.hits.append(times.drafts[-1])
            parents = draft.parents or range(-1, len(draft) - 1)
            future = text[position:-1]
            for row, (token, above) in enumerate(zip(draft.tokens, parents, strict=True)):
                if above == parent and accepted < len(future) and token == future[accepted]:
                    accepted, parent = accepted + 1, row
        committed = tuple(text[position : position + accepted + 1])
        request.tokens.extend(committed)
        outcome = Outcome(position, committed, draft, accepted)
        begun = time.perf_counter()
        drafter.observe(request, outcome)
        times.observes.append((time.perf_counter() - begun) / len(committed))
        times.accepted += accepted
    return times


def measure(name: str, text: list[int], prompt: int, *, trees: bool) -> dict[str, float]:
    starts = []
    for _ in range(3):
        drafter, request = new_drafter(name, trees=trees), new_request(text, prompt)
        begun = time.perf_counter()
        drafter.start(request)
        starts.append(time.perf_counter() - begun)
    times = rounds(drafter, request, text)
    drafter.close()
    del drafter, request
    gc.collect()
    tracemalloc.start()
    request = new_request(text, prompt)
    before = tracemalloc.get_traced_memory()[0]
    drafter = new_drafter(name, trees=trees)
    drafter.start(request)
    rounds(drafter, request, text)
    gc.collect()
    memory = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    drafter.close()
    return {
        "draft_us": 1e6 * statistics.median(times.drafts),
        "draft_hit_us": 1e6 * statistics.median(times.hits or [0.0]),
        "observe_us": 1e6 * statistics.median(times.observes),
        "start_ms": 1e3 * min(starts),
        "memory_mb": memory / 1e6,
        "hit_percent": 100 * times.accepted / GENERATED,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="Cost of the model-free drafters.")
    parser.add_argument("drafters", nargs="*", help="names; all model-free ones by default")
    parser.add_argument("--tokens", type=int, default=100_000, help="tokens of history")
    parser.add_argument("--trees", action="store_true", help="draft for a model that verifies trees")
    arguments = parser.parse_args()
    text = synthetic_text(arguments.tokens + GENERATED)
    results: dict[str, dict[str, float]] = {}
    print(
        f"{'drafter':<16}{'draft µs':>10}{'hit µs':>9}{'observe µs':>12}{'start ms':>10}{'MB':>8}{'hit %':>8}"
    )
    for name in arguments.drafters or model_free():
        try:
            result = measure(name, text, arguments.tokens, trees=arguments.trees)
        except ModuleNotFoundError as exc:
            print(f"{name:<16}not installed: {exc.name}")
            continue
        results[name] = result
        columns = zip(result.values(), (10, 9, 12, 10, 8, 8), strict=True)
        print(f"{name:<16}" + "".join(f"{value:>{width}.1f}" for value, width in columns))
    print(json.dumps({"benchmark": "drafters", "tokens": arguments.tokens, "results": results}))


if __name__ == "__main__":
    run_benchmark(main)
