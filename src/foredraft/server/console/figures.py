"""Figures of a span of time, of which two make those of both together."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field, fields
from typing import Any

RATIO = 1.08
"""Upper ÷ lower bound of a histogram's bucket: a percentile is within 4 % of the exact one."""

SHORTEST_S, LONGEST_S = 1e-6, 1e5
"""Times beyond are counted as these, which bounds the number of buckets by 330."""

MOST_DRAFTERS = 32
"""Drafters that are told apart; the rest is counted together."""

OTHERS = "others"
_PER_LOG = 1 / math.log(RATIO)


class Spans:
    """A histogram of times: bucket k counts those from RATIO**k to RATIO**(k + 1) seconds."""

    __slots__ = ("counts",)

    def __init__(self, counts: dict[int, int] | None = None) -> None:
        self.counts = counts if counts is not None else {}

    def add(self, seconds: float, count: int = 1) -> None:
        """Count a time `count` times."""
        if not SHORTEST_S < seconds < LONGEST_S:
            seconds = SHORTEST_S if seconds < LONGEST_S else LONGEST_S
        bucket = math.floor(math.log(seconds) * _PER_LOG)
        counts = self.counts
        counts[bucket] = counts.get(bucket, 0) + count

    def merge(self, other: Spans) -> None:
        """Add what another one counted."""
        for bucket, count in other.counts.items():
            self.counts[bucket] = self.counts.get(bucket, 0) + count

    def percentile_ms(self, share: float) -> float | None:
        """The time below which this share of all times is, in milliseconds; None: there are none."""
        rank = max(1, math.ceil(share * sum(self.counts.values())))
        for bucket in sorted(self.counts):
            rank -= self.counts[bucket]
            if rank <= 0:
                return round(1e3 * math.exp((bucket + 0.5) / _PER_LOG), 3)
        return None


@dataclass(slots=True)
class Figures:
    """What happened in a span of time. `seconds` of it a server ran, those of several servers added up.

    `read`: tokens of prompts that were computed; `prompt` and `cached` are of answers that ended.
    `spent_ms` and `plain_ms`: time taken, and that of plain rounds for the same tokens. `cpu` and `gpu`:
    shares, each times the `_s` seconds for which it is known. `drafters`: drafts, tokens drafted, accepted,
    ms.
    """

    seconds: float = 0.0
    requests: int = 0
    failed: int = 0
    read: int = 0
    prompt: int = 0
    cached: int = 0
    generated: int = 0
    rounds: int = 0
    spent_ms: float = 0.0
    plain_ms: float = 0.0
    cpu: float = 0.0
    cpu_s: float = 0.0
    gpu: float = 0.0
    gpu_s: float = 0.0
    running: int = 0
    waiting: int = 0
    memory: int = 0
    gpu_memory: int = 0
    first: Spans = field(default_factory=Spans)
    gaps: Spans = field(default_factory=Spans)
    drafters: dict[str, list[float]] = field(default_factory=dict)
    depth: list[int] = field(default_factory=list)

    def merge(self, other: Figures) -> None:
        """Add what happened in another span, or in this one on another server."""
        for name in _SUMS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for name in _MOST:
            setattr(self, name, max(getattr(self, name), getattr(other, name)))
        self.first.merge(other.first)
        self.gaps.merge(other.gaps)
        for drafter, sums in other.drafters.items():
            self.drafted(drafter, sums)
        self.accepted(other.depth)

    def drafted(self, drafter: str, sums: list[float]) -> None:
        """Add drafts, tokens drafted and accepted, and ms of a drafter."""
        if drafter not in self.drafters and len(self.drafters) >= MOST_DRAFTERS:
            drafter = OTHERS
        before = self.drafters.get(drafter, [0, 0, 0, 0.0])
        self.drafters[drafter] = [a + b for a, b in zip(before, sums, strict=True)]

    def accepted(self, by_depth: list[int] | tuple[int, ...]) -> None:
        """Add draft tokens accepted at each depth."""
        self.depth += [0] * (len(by_depth) - len(self.depth))
        for depth, count in enumerate(by_depth):
            self.depth[depth] += count

    def text(self) -> str:
        """JSON, without what is zero or empty."""
        found: dict[str, Any] = {}
        for name in (*_SUMS, *_MOST):
            if value := getattr(self, name):
                found[name] = round(value, 3)
        for name in _SPANS:
            if counts := getattr(self, name).counts:
                found[name] = counts
        if self.drafters:
            found["drafters"] = {
                name: [*map(int, counts), round(ms, 3)] for name, (*counts, ms) in self.drafters.items()
            }
        if self.depth:
            found["depth"] = self.depth
        return json.dumps(found, separators=(",", ":"))

    @classmethod
    def of(cls, text: str) -> Figures:
        """The figures of such a JSON text. Raises ValueError."""
        try:
            found = json.loads(text)
            made = cls()
            for name in (*_SUMS, *_MOST):
                setattr(made, name, type(getattr(made, name))(found.get(name, 0)))
            for name in _SPANS:
                counts = {int(bucket): int(count) for bucket, count in found.get(name, {}).items()}
                setattr(made, name, Spans(counts))
            for drafter, sums in found.get("drafters", {}).items():
                made.drafted(str(drafter), [float(value) for value in sums])
            made.depth = [int(count) for count in found.get("depth", [])]
        except (ValueError, TypeError, AttributeError, KeyError, OverflowError) as error:
            raise ValueError(f"not figures: {error}") from None
        return made


_SPANS = ("first", "gaps")
_MOST = ("running", "waiting", "memory", "gpu_memory")
_SUMS = tuple(
    each.name for each in fields(Figures) if each.name not in (*_SPANS, *_MOST, "drafters", "depth")
)
