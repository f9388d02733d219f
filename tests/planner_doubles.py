"""Planners for tests of what is around a planner, and a text that is easy to foretell."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from foredraft.protocols import Planner, RequestView
from foredraft.types import Draft, DraftLimit, Load, Logits, Round

VOCABULARY = 16


def counting(prefix: Sequence[int]) -> Logits:
    """The next token is the last one plus one, around a circle that leaves the end token out."""
    row = np.zeros(VOCABULARY, np.float32)
    row[(prefix[-1] + 1) % (VOCABULARY - 1)] = 10.0
    return row


class PlannerAround:
    """Does what another planner does. A test's own overrides a part of it."""

    def __init__(self, inner: Planner) -> None:
        self._inner = inner

    def rests(self, requests: Sequence[RequestView], load: Load) -> bool:
        return self._inner.rests(requests, load)

    def limits(
        self, requests: Sequence[RequestView], drafters: Sequence[str], load: Load
    ) -> Mapping[str, Sequence[DraftLimit | None]]:
        return self._inner.limits(requests, drafters, load)

    def choose(
        self, requests: Sequence[RequestView], candidates: Sequence[Sequence[Draft]], load: Load
    ) -> list[Draft | None]:
        return self._inner.choose(requests, candidates, load)

    def rests_next(self, requests: Sequence[RequestView], load: Load) -> bool:
        return self._inner.rests_next(requests, load)

    def observe(self, measured: Round) -> None:
        self._inner.observe(measured)

    def reason(self) -> str | None:
        return self._inner.reason()

    def start(self, request: RequestView, drafters: Sequence[str] = ()) -> None:
        self._inner.start(request, drafters)

    def stop(self, request: RequestView) -> None:
        self._inner.stop(request)


class SlowToLearn(PlannerAround):
    """Learning takes it a quarter of a second of the clock `now`; it keeps the late times it is told."""

    def __init__(self, inner: Planner, now: list[float]) -> None:
        super().__init__(inner)
        self._now = now
        self.late_ms: list[float] = []

    def observe(self, measured: Round) -> None:
        self.late_ms.append(measured.late_ms)
        self._now[0] += 0.25
