"""What a planner that decides by cost is told before its first round, and what is kept of it afterwards."""

from __future__ import annotations

from collections.abc import Callable

from foredraft.engine.knowledge import Knowledge
from foredraft.engine.prefix.cache import PrefixCache
from foredraft.engine.warmup import PACE_SIZES, SIZES, measure_costs
from foredraft.planner.adaptive import AdaptivePlanner
from foredraft.protocols import Model
from foredraft.types import Round


class Teaching:
    """Of one loaded model: what is stored of it, if anything is kept, and what its forwards take, measured
    once. `clock` gives seconds; `notice` is told in a line where something takes long.
    """

    def __init__(self, model: Model, cache: PrefixCache, clock: Callable[[], float]) -> None:
        self.knowledge: Knowledge | None = None
        self.notice: Callable[[str], None] | None = None
        self._model = model
        self._cache = cache
        self._clock = clock
        self._costs: list[Round] | None = None

    def teach(self, planner: AdaptivePlanner) -> None:
        """Tell it. Forwards are measured in a free sequence, so no request may be running."""
        enough = self.knowledge is not None and self.knowledge.recall(planner)
        if self._costs is None:
            self._costs = self._measured(thorough=not enough)
        for measured in self._costs:
            planner.observe(measured)

    def keep(self, planner: AdaptivePlanner | None) -> None:
        """Store what it has learnt, if it is one that learns and anything is kept."""
        if self.knowledge is not None and planner is not None:
            self.knowledge.keep(planner)

    def _measured(self, *, thorough: bool) -> list[Round]:
        place = self._cache.acquire([0])
        assert place is not None, "only called while no request is running"
        sizes = SIZES if thorough else PACE_SIZES
        costs = measure_costs(self._model, place[0], sizes=sizes, clock=self._clock, notice=self.notice)
        self._cache.drop(place[0])
        return costs
