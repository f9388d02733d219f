"""What speculation did for a request: counts, time, and the speedup over plain rounds."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import NamedTuple

from foredraft.types import Draft, DrafterStats, Round, SpeculationStats

MEDIAN_ROUNDS = 16
"""Rounds after which the median is computed again, which takes 30 µs."""

FIRST_ROUNDS = 8
"""Up to this number of rounds the median is computed after each."""

MAX_MEDIANS = 3.0
"""A round counts as at most this many medians in the deviation: one pause of the machine must not set it."""

NOISE_STANDARD_ERRORS = 2.0
"""A difference within this many standard errors is noise."""

_MEDIAN_ERROR = math.sqrt(math.pi / 2)
"""The standard error of a median, in standard errors of a mean."""


class PlainRound(NamedTuple):
    """Recent plain rounds: the median and the standard deviation in ms, and the number of rounds seen."""

    ms: float
    deviation: float
    seen: int


class PlainRounds:
    """How long plain rounds took lately, by the number of requests that shared them."""

    def __init__(self, window: int = 64) -> None:
        self._window = window
        self._recent: dict[int, deque[float]] = {}
        self._known: dict[int, PlainRound] = {}
        self._added = 0

    def add(self, requests: int, ms: float) -> None:
        """Add a round in which nothing was verified or prefilled, without the time spent on drafting."""
        recent = self._recent.setdefault(requests, deque(maxlen=self._window))
        recent.append(ms)
        self._added += 1
        if len(recent) <= FIRST_ROUNDS or self._added % MEDIAN_ROUNDS == 0:
            self._known[requests] = _plain_round(recent)

    def of(self, requests: int) -> PlainRound | None:
        """Plain rounds of this many requests; None until two were seen, which show how much they vary."""
        known = self._known.get(requests)
        return known if known is not None and known.seen > 1 else None

    def compare(self, measured: Round, speedups: Sequence[Speedup]) -> None:
        """Compare a round without a prompt with plain rounds, for its requests' estimated speedup."""
        requests, drafted_ms = len(measured.outcomes), sum(measured.draft_ms.values())
        overhead_ms = drafted_ms + measured.plan_ms + measured.late_ms
        ms = overhead_ms + measured.forward_ms + measured.sample_ms
        plain = not any(outcome.draft for _, outcome in measured.outcomes)
        if plain:
            self.add(requests, ms - overhead_ms)
        usual = self.of(requests)
        if usual is None:
            return
        for speedup, (_, outcome) in zip(speedups, measured.outcomes, strict=True):
            if plain:
                speedup.plain(ms, overhead_ms, usual)
            else:
                speedup.drafted(len(outcome.tokens), ms, usual)


def _plain_round(recent: Sequence[float]) -> PlainRound:
    middle = median(recent)
    squares = sum((min(ms, MAX_MEDIANS * middle) - middle) ** 2 for ms in recent)
    return PlainRound(middle, math.sqrt(squares / max(1, len(recent) - 1)), len(recent))


class Speedup:
    """The estimated speedup: the time plain rounds would have taken for the same tokens ÷ the time taken."""

    def __init__(self) -> None:
        self._plain_ms = 0.0
        self._spent_ms = 0.0
        self._variance = 0.0
        self._shift_ms = 0.0

    def plain(self, ms: float, overhead_ms: float, plain: PlainRound, requests: int = 1) -> None:
        """Add a round without a draft: a plain round and `overhead_ms` spent on drafting. Times are the
        round's, for each of the `requests` that are counted.
        """
        self._spent_ms += requests * ms
        self._plain_ms += requests * (ms - overhead_ms)
        self._variance += (requests * plain.deviation) ** 2

    def drafted(self, tokens: int, ms: float, plain: PlainRound, requests: int = 1) -> None:
        """Add a round with drafts, which committed `tokens` tokens for these requests."""
        self._spent_ms += requests * ms
        self._plain_ms += tokens * plain.ms
        self._variance += (requests * plain.deviation) ** 2
        self._shift_ms += tokens * _MEDIAN_ERROR * plain.deviation / math.sqrt(plain.seen)

    @property
    def value(self) -> float | None:
        """1.0 where the difference is within what rounds vary by; None where nothing could be compared."""
        if not self._spent_ms:
            return None
        noise_ms = NOISE_STANDARD_ERRORS * math.sqrt(self._variance + self._shift_ms**2)
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

    def spent(self, measured: Round, share: float) -> None:
        """The request's share of a round's milliseconds, by what they were spent on."""
        ms = self._ms
        ms["draft"] += share * sum(measured.draft_ms.values())
        ms["verify"] += share * measured.forward_ms
        ms["sample"] += share * measured.sample_ms
        ms["other"] += share * (measured.plan_ms + measured.late_ms)

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


@dataclass(slots=True)
class AdapterStats:
    """Totals of the requests of one adapter that are over."""

    requests: int = 0
    rounds: int = 0
    committed: int = 0
    drafted: int = 0
    accepted: int = 0

    def add(self, request: RequestStats) -> None:
        """A request is over."""
        self.requests += 1
        self.rounds += request.rounds
        self.committed += request.committed
        self.drafted += request.drafted
        self.accepted += request.accepted

    def as_dict(self) -> dict[str, float | None]:
        """As `GET /v1/speculation` has it."""
        return {
            "requests": self.requests,
            "drafted": self.drafted,
            "accepted": self.accepted,
            "acceptance_rate": round(self.accepted / self.drafted, 4) if self.drafted else None,
            "tokens_per_forward": round(self.committed / self.rounds, 3) if self.rounds else None,
        }
