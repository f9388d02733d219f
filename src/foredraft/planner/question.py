"""What a question takes: asking drafters that cost next to nothing, and choosing among what they found."""

from __future__ import annotations

from collections.abc import Sequence

from foredraft.planner.asking import Asking
from foredraft.planner.attention import times
from foredraft.planner.cost import CostCurve
from foredraft.planner.hints import FRESH
from foredraft.planner.overhead import Overhead
from foredraft.types import Load


class Question:
    """Its price for one of the requests that decode together, in V(1).

    The price of the last question holds until the next one, as long as hints hold and no draft was verified
    meanwhile: a rest was reckoned with it.
    """

    def __init__(self, curve: CostCurve, asking: Asking, overhead: Overhead) -> None:
        self._curve = curve
        self._asking = asking
        self._overhead = overhead
        self._held: tuple[tuple[int, Sequence[str], int], float] | None = None

    def cost(self, drafters: Sequence[str], load: Load) -> float:
        """What it takes to ask these for one of so many requests. The overhead is mostly that of rounds in
        which all of them were asked.
        """
        if self._held is not None and self._held[0] == self._asked_for(drafters, load):
            return self._held[1]
        single, each_ms = self._curve.single_ms, self._overhead.ms(load.decoding) / times(load.decoding)
        return self._asking.cost(drafters) + (each_ms / single if single else 0.0)

    def hold(self, drafters: Sequence[str], load: Load) -> None:
        """From now on the price is what it is now."""
        self.renew()
        self._held = self._asked_for(drafters, load), self.cost(drafters, load)

    def renew(self) -> None:
        """From now on it is what was measured last."""
        self._held = None

    def _asked_for(self, drafters: Sequence[str], load: Load) -> tuple[int, Sequence[str], int]:
        """For how many requests, whom, and when, as long as hints hold."""
        return load.decoding, drafters, self._curve.rounds // FRESH
