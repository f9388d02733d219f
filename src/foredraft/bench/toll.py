"""Charging a replay for asking: virtual time passes where an engine on a machine would spend it."""

from __future__ import annotations

from foredraft.bench.replay_model import ReplayModel
from foredraft.engine.engine import Engine
from foredraft.planner.attention import times


class Toll:
    """Moves a replay's clock for every drafter that is asked and, with `choosing`, for comparing what was
    found and for seeing whom to ask, as `model.asking` says. `seconds` is what that was in all.
    """

    def __init__(self, model: ReplayModel, *, choosing: bool) -> None:
        self.model = model
        self._choosing = choosing
        self.seconds = 0.0

    def began(self) -> None:
        """A round begins, whoever is asked in it."""
        if self._choosing:
            self._pass(self.model.asking.resting, 1)

    def asked(self, drafter: str, requests: int) -> None:
        """A drafter was asked for so many requests."""
        self._pass(self.model.asking.of(drafter), requests)

    def found(self, requests: int) -> None:
        """For so many requests of a round there is something to choose from."""
        if self._choosing:
            self._pass(self.model.asking.choosing, requests)

    def _pass(self, ms: float, requests: int) -> None:
        seconds = ms * times(requests) / 1e3
        self.seconds += seconds
        self.model.seconds += seconds


def charge(engine: Engine, model: ReplayModel) -> Toll:
    """Charge what an engine asks from now on, until its speculation is set again. `model` is the engine's."""
    toll = Toll(model, choosing=engine.setup.learner is not None)
    engine.setup.drafters.toll = toll
    return toll
