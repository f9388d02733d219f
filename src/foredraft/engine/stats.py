"""Counting what speculation did for a request, and how long plain rounds take to compare with."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from statistics import median
from typing import NamedTuple

from foredraft.types import Draft, DrafterStats, SpeculationStats

MEDIAN_EVERY = 16
"""Rounds after which a median is taken anew: one takes 30 µs."""

FEW = 8
"""Of so few rounds it is taken after each."""

CLIPPED = 3.0
"""Medians that a round counts as at most in the deviation: one in which the machine slept says nothing."""

ERRORS = 2.0
"""Standard errors within which a difference is noise."""

_OF_A_MEDIAN = math.sqrt(math.pi / 2)
"""Its standard error by that of a mean."""


class PlainRound(NamedTuple):
    """What plain rounds took lately: the median and the standard deviation in ms, and how many they were."""

    ms: float
    deviation: float
    seen: int


class PlainRounds:
    """How long a plain decoding round took lately, by how many requests shared it."""

    def __init__(self, window: int = 64) -> None:
        self._window = window
        self._recent: dict[int, deque[float]] = {}
        self._known: dict[int, PlainRound] = {}
        self._added = 0

    def add(self, requests: int, ms: float) -> None:
        """A round in which nothing was drafted or prefilled, less what was spent on looking for drafts."""
        recent = self._recent.setdefault(requests, deque(maxlen=self._window))
        recent.append(ms)
        self._added += 1
        if len(recent) <= FEW or self._added % MEDIAN_EVERY == 0:
            self._known[requests] = _plain_round(recent)

    def of(self, requests: int) -> PlainRound | None:
        """None until two such rounds were seen: one does not tell how much they vary."""
        known = self._known.get(requests)
        return known if known is not None and known.seen > 1 else None


def _plain_round(recent: Sequence[float]) -> PlainRound:
    middle = median(recent)
    squares = sum((min(ms, CLIPPED * middle) - middle) ** 2 for ms in recent)
    return PlainRound(middle, math.sqrt(squares / max(1, len(recent) - 1)), len(recent))


class Speedup:
    """The time that plain rounds would have taken for the same tokens, by the time that was taken."""

    def __init__(self) -> None:
        self._plain_ms = 0.0
        self._spent_ms = 0.0
        self._variance = 0.0
        self._shift_ms = 0.0

    def plain(self, ms: float, overhead_ms: float, plain: PlainRound, requests: int = 1) -> None:
        """A round without a draft is what plain decoding does, but for what looking for one took. Times are
        the round's, for each of the `requests` that are counted.
        """
        self._spent_ms += requests * ms
        self._plain_ms += requests * (ms - overhead_ms)
        self._variance += (requests * plain.deviation) ** 2

    def drafted(self, tokens: int, ms: float, plain: PlainRound, requests: int = 1) -> None:
        """A round with drafts committed `tokens` for these requests."""
        self._spent_ms += requests * ms
        self._plain_ms += tokens * plain.ms
        self._variance += (requests * plain.deviation) ** 2
        self._shift_ms += tokens * _OF_A_MEDIAN * plain.deviation / math.sqrt(plain.seen)

    @property
    def value(self) -> float | None:
        """1.0 where the difference is within what rounds vary by; None where nothing could be compared."""
        if not self._spent_ms:
            return None
        noise_ms = ERRORS * math.sqrt(self._variance + self._shift_ms**2)
        if abs(self._plain_ms - self._spent_ms) <= noise_ms:
            return 1.0
        return round(self._plain_ms / self._spent_ms, 3)


class RequestStats:
    """Draft and round counters of one request."""

    def __init__(self) -> None:
        self.rounds = 0
        self.committed = 0
        self.preemptions = 0
        self._drafters: dict[str, list[float]] = {}
        self._by_depth: list[int] = []
        self.speedup = Speedup()
        self._ms = {"draft": 0.0, "verify": 0.0, "sample": 0.0, "other": 0.0}

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
            estimated_speedup=self.speedup.value,
            drafters=self.drafters(),
            accepted_by_depth=tuple(self._by_depth),
            exact=exact[0],
            exact_reason=exact[1],
            notes=notes,
            ms={part: round(ms, 3) for part, ms in self._ms.items()},
            preemptions=self.preemptions,
        )
