"""Counting what speculation did, for one request and for the engine's idea of a plain round's time."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from statistics import median

from foretoken.types import Draft, DrafterStats, SpeculationStats


class PlainRounds:
    """The time of a plain decoding round lately (milliseconds): the yardstick of `estimated_speedup`."""

    def __init__(self, window: int = 64) -> None:
        self._recent: deque[float] = deque(maxlen=window)

    def add(self, ms: float) -> None:
        self._recent.append(ms)

    @property
    def ms(self) -> float | None:
        return median(self._recent) if self._recent else None


class RequestStats:
    """Draft and round counters of one request."""

    def __init__(self) -> None:
        self.rounds = 0
        self.committed = 0
        self._drafters: dict[str, list[float]] = {}
        self._by_depth: list[int] = []

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
        self,
        *,
        configured: str,
        reason: str | None,
        plain_ms: float | None,
        decode_ms: float,
        exact: tuple[bool, str],
        notes: tuple[str, ...],
    ) -> SpeculationStats:
        """The `speculation` object of the response."""
        speedup = None
        if plain_ms and decode_ms > 0 and self.committed:
            speedup = round(self.committed * plain_ms / decode_ms, 3)
        return SpeculationStats(
            configured=configured,
            active=reason is None,
            reason=reason,
            rounds=self.rounds,
            acceptance_rate=round(self.accepted / self.drafted, 4) if self.drafted else None,
            acceptance_length=round(self.committed / self.rounds, 3) if self.rounds else None,
            estimated_speedup=speedup,
            drafters=self.drafters(),
            accepted_by_depth=tuple(self._by_depth),
            exact=exact[0],
            exact_reason=exact[1],
            notes=notes,
        )
