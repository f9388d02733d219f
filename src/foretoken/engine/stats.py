"""Counting what speculation did for a request, and how long plain rounds take to compare with."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from statistics import median

from foretoken.types import Draft, DrafterStats, SpeculationStats

MEDIAN_EVERY = 8
"""Rounds after which a median is taken anew: with caches that a forward has emptied one takes 30 µs."""


class PlainRounds:
    """How long a plain decoding round took lately (milliseconds), by how many requests shared it."""

    def __init__(self, window: int = 64) -> None:
        self._window = window
        self._recent: dict[int, deque[float]] = {}
        self._median: dict[int, float] = {}
        self._added = 0

    def add(self, requests: int, ms: float) -> None:
        """A round in which nothing was drafted or prefilled."""
        recent = self._recent.setdefault(requests, deque(maxlen=self._window))
        recent.append(ms)
        self._added += 1
        if len(recent) < MEDIAN_EVERY or self._added % MEDIAN_EVERY == 0:
            self._median[requests] = median(recent)

    def ms(self, requests: int) -> float | None:
        """The median, or None if no such round was seen."""
        return self._median.get(requests)


class RequestStats:
    """Draft and round counters of one request."""

    def __init__(self) -> None:
        self.rounds = 0
        self.committed = 0
        self._drafters: dict[str, list[float]] = {}
        self._by_depth: list[int] = []
        self._plain_ms = 0.0
        self._spent_ms = 0.0
        self._ms = {"draft": 0.0, "verify": 0.0, "sample": 0.0, "other": 0.0}

    def timed(self, committed: int, ms: float, plain_ms: float | None) -> None:
        """A round took `ms` and committed tokens that plain rounds of `plain_ms` each would have brought."""
        if plain_ms is not None:
            self._spent_ms += ms
            self._plain_ms += committed * plain_ms

    def spent(self, *, draft: float, verify: float, sample: float, other: float) -> None:
        """The request's share of a round's milliseconds, by what they were spent on."""
        ms = self._ms
        ms["draft"] += draft
        ms["verify"] += verify
        ms["sample"] += sample
        ms["other"] += other

    def drafting(self, source: str, ms: float) -> None:
        """Time a drafter spent on this request, whether or not its draft was used."""
        self._counters(source)[3] += ms

    def round(self, draft: Draft | None, accepted: int, committed: int) -> None:
        """One target forward that decoded."""
        self.rounds += 1
        self.committed += committed
        if draft is None:
            return
        counters = self._counters(draft.source)
        counters[0] += 1
        counters[1] += len(draft)
        counters[2] += accepted
        self._by_depth.extend([0] * (accepted - len(self._by_depth)))
        for depth in range(accepted):
            self._by_depth[depth] += 1

    def _counters(self, source: str) -> list[float]:
        return self._drafters.setdefault(source, [0, 0, 0, 0.0])

    @property
    def drafted(self) -> int:
        return int(sum(counters[1] for counters in self._drafters.values()))

    @property
    def accepted(self) -> int:
        return int(sum(counters[2] for counters in self._drafters.values()))

    def drafters(self) -> Mapping[str, DrafterStats]:
        return {
            name: DrafterStats(int(drafts), int(drafted), int(accepted), round(ms, 3))
            for name, (drafts, drafted, accepted, ms) in self._drafters.items()
        }

    def summary(
        self, *, configured: str, reason: str | None, exact: tuple[bool, str], notes: tuple[str, ...]
    ) -> SpeculationStats:
        """The `speculation` object of the response."""
        return SpeculationStats(
            configured=configured,
            active=reason is None,
            reason=reason,
            rounds=self.rounds,
            acceptance_rate=round(self.accepted / self.drafted, 4) if self.drafted else None,
            acceptance_length=round(self.committed / self.rounds, 3) if self.rounds else None,
            estimated_speedup=round(self._plain_ms / self._spent_ms, 3) if self._spent_ms else None,
            drafters=self.drafters(),
            accepted_by_depth=tuple(self._by_depth),
            exact=exact[0],
            exact_reason=exact[1],
            notes=notes,
            ms={part: round(ms, 3) for part, ms in self._ms.items()},
        )
