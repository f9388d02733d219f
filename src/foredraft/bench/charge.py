"""Charging a replay for attempts to draft: virtual time passes where a machine would spend it.

Forwards move a replay's clock; drafters and the planner do not, since they really run. So an engine's
drafters and its planner are wrapped: each call that costs time on a machine moves the clock by what it costs
there. The engine measures that time as any other; nothing in it is made for this.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

from foredraft.bench.attempt_cost import FURTHER
from foredraft.bench.replay_model import ReplayModel
from foredraft.engine.engine import Engine
from foredraft.protocols import Drafter, Planner, RequestView
from foredraft.types import Choice, Draft, DraftLimit, Load

WEIGHING = 0.75
"""What weighing candidates takes before a costly drafter is asked, of what choosing among them and learning
from it does (measured: 0.16 ms of 0.21, shipped traces).
"""


class Meter:
    """Moves the clock of a replay; `seconds` is how far in all."""

    def __init__(self, model: ReplayModel) -> None:
        self.model = model
        self.seconds = 0.0

    def charge(self, ms: float, requests: int = 1) -> None:
        """Charge an attempt for this number of requests; it costs `ms` for one."""
        if requests:
            seconds = ms * (1.0 + FURTHER * (requests - 1)) / 1e3
            self.seconds += seconds
            self.model.seconds += seconds


class _Charged:
    """Another object, and a meter. Whatever is not defined here is the other object's."""

    def __init__(self, inner: Any, meter: Meter) -> None:
        self._inner = inner
        self._meter = meter

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class ChargedDrafter(_Charged):
    """A drafter whose calls cost what the model's curve says."""

    def draft(self, requests: Sequence[tuple[RequestView, DraftLimit]]) -> list[Draft | None]:
        cost = self._meter.model.attempts.of(self._inner.name)
        self._meter.charge(cost, len(requests))
        return cast("list[Draft | None]", self._inner.draft(requests))


class ChargedPlanner(_Charged):
    """A planner that pays for every round, for every request that it has candidates to choose from, and for
    weighing those that are there before drafters whose tokens take real time are asked.
    """

    def limits(
        self, requests: Sequence[RequestView], load: Load
    ) -> Mapping[str, Sequence[DraftLimit | None]]:
        self._meter.charge(self._meter.model.attempts.round)
        return cast("Mapping[str, Sequence[DraftLimit | None]]", self._inner.limits(requests, load))

    def further(
        self, requests: Sequence[RequestView], candidates: Sequence[Sequence[Draft]], load: Load
    ) -> Mapping[str, Sequence[DraftLimit | None]]:
        found = self._inner.further(requests, candidates, load)
        if any(any(row) for row in found.values()):
            self._meter.charge(WEIGHING * self._meter.model.attempts.choosing, sum(map(bool, candidates)))
        return cast("Mapping[str, Sequence[DraftLimit | None]]", found)

    def choose(
        self, requests: Sequence[RequestView], candidates: Sequence[Sequence[Draft]], load: Load
    ) -> Sequence[Choice]:
        self._meter.charge(self._meter.model.attempts.choosing, sum(map(bool, candidates)))
        return cast("Sequence[Choice]", self._inner.choose(requests, candidates, load))


def charge(engine: Engine, model: ReplayModel, *, choosing: bool = True) -> Meter:
    """Charge an engine's attempts from now on, until its speculation is set again. `model` is the engine's;
    `choosing`: whether the planner's work is charged, too.
    """
    meter = Meter(model)
    setup = engine.setup
    drafters: Mapping[str, Drafter] = setup.drafters._drafters
    setup.drafters._drafters = {
        name: cast("Drafter", ChargedDrafter(drafter, meter)) for name, drafter in drafters.items()
    }
    if choosing:
        planner = cast("Planner", ChargedPlanner(setup.planner, meter))
        engine._runner.setup = replace(setup, planner=planner)
    return meter
