"""The planner of a speculation string without `auto`: the named drafters draft, always."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from foredraft.planner.tables.calibration import Survival, sampled
from foredraft.protocols import RequestView
from foredraft.types import Draft, DraftLimit, Load, Round

UNLIMITED = DraftLimit(1 << 16)


class FixedPlanner:
    """Every drafter drafts to its own length; of several candidates the one expected to keep the most wins.

    What a drafter is expected to keep is learnt from what was accepted before, so no drafter has a fixed
    priority over another.
    """

    def __init__(self) -> None:
        self._survival = Survival()

    def rests(self, requests: Sequence[RequestView], load: Load) -> bool:  # noqa: ARG002
        return False

    def limits(
        self,
        requests: Sequence[RequestView],
        drafters: Sequence[str],
        load: Load,  # noqa: ARG002
    ) -> Mapping[str, Sequence[DraftLimit | None]]:
        return {name: [UNLIMITED] * len(requests) for name in drafters}

    def choose(
        self,
        requests: Sequence[RequestView],
        candidates: Sequence[Sequence[Draft]],
        load: Load,  # noqa: ARG002
    ) -> list[Draft | None]:
        chosen: list[Draft | None] = []
        for request, drafts in zip(requests, candidates, strict=True):
            self._survival.remember(request.id, drafts, request.tokens[-1])
            chosen.append(sampled(drafts) or self._best(drafts, request.tokens[-1]))
        return chosen

    def _best(self, drafts: Sequence[Draft], last: int) -> Draft | None:
        """The one that is expected to keep the most, after the text's token `last`."""
        return max(drafts, key=lambda it: sum(self._survival.estimate(it, last=last)), default=None)

    def rests_next(self, requests: Sequence[RequestView], load: Load) -> bool:  # noqa: ARG002
        return False

    def observe(self, measured: Round) -> None:
        for request, outcome in measured.outcomes:
            self._survival.score(request, outcome)

    def reason(self) -> str | None:
        return None

    def start(self, request: RequestView, drafters: Sequence[str] = ()) -> None:
        pass

    def stop(self, request: RequestView) -> None:
        self._survival.forget(request.id)
