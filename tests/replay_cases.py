"""Recorded answers and a cost curve for tests of replays."""

from __future__ import annotations

import random

from foredraft.bench.curves import Curve
from foredraft.bench.trace import Trace, TraceSet

FLAT = Curve("flat", {1: 1.0, 64: 2.0})


def traces(*pairs: tuple[list[int], list[int]], vocab_size: int = 50) -> TraceSet:
    return TraceSet(
        "test",
        vocab_size,
        "h",
        (),
        [Trace(str(i), "c", tuple(a), tuple(b)) for i, (a, b) in enumerate(pairs)],
    )


def noise(count: int, seed: int, vocab_size: int = 50) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(vocab_size) for _ in range(count)]
