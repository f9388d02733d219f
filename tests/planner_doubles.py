"""Planners for tests of what is around a planner, and a text that is easy to foretell."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from foredraft.planner import AutoPlanner
from foredraft.protocols import Planner, Proposer, RequestView
from foredraft.testing import FakeModel
from foredraft.types import Choice, Draft, DraftLimit, Load, Logits, Round

VOCABULARY = 16


def counting(prefix: Sequence[int]) -> Logits:
    """The next token is the last one plus one, around a circle that leaves the end token out."""
    row = np.zeros(VOCABULARY, np.float32)
    row[(prefix[-1] + 1) % (VOCABULARY - 1)] = 10.0
    return row


def auto_planner(*, trees: bool = True) -> AutoPlanner:
    """The planner of `auto` for a model that can do everything, but for trees where it cannot."""
    return AutoPlanner(FakeModel(trees=trees).capabilities)


class PlannerAround:
    """Does what another planner does. A test's own overrides a part of it."""

    def __init__(self, inner: Planner) -> None:
        self._inner = inner

    def start(self, request: RequestView, drafters: Sequence[Proposer]) -> None:
        self._inner.start(request, drafters)

    def limits(
        self, requests: Sequence[RequestView], load: Load
    ) -> Mapping[str, Sequence[DraftLimit | None]]:
        return self._inner.limits(requests, load)

    def further(
        self, requests: Sequence[RequestView], candidates: Sequence[Sequence[Draft]], load: Load
    ) -> Mapping[str, Sequence[DraftLimit | None]]:
        return self._inner.further(requests, candidates, load)

    def choose(
        self, requests: Sequence[RequestView], candidates: Sequence[Sequence[Draft]], load: Load
    ) -> Sequence[Choice]:
        return self._inner.choose(requests, candidates, load)

    def observe(self, rounds: Sequence[Round]) -> None:
        self._inner.observe(rounds)

    def stop(self, request: RequestView) -> None:
        self._inner.stop(request)


class SlowToLearn(PlannerAround):
    """Learning takes it a quarter of a second of the clock `now`; `late_ms` keeps those of the rounds."""

    def __init__(self, inner: Planner, now: list[float]) -> None:
        super().__init__(inner)
        self._now = now
        self.late_ms: list[float] = []

    def observe(self, rounds: Sequence[Round]) -> None:
        self.late_ms += [measured.late_ms for measured in rounds]
        self._now[0] += 0.25
        super().observe(rounds)
