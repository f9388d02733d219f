"""The planner of a speculation string without `auto`: the named drafters always draft."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from foredraft.planner.acceptance import Acceptance, sampled
from foredraft.protocols import Proposer, RequestView
from foredraft.types import Choice, Draft, DraftLimit, Load, Reason, Round

UNLIMITED = DraftLimit(1 << 16)


class StaticPlanner:
    """Every drafter drafts to its own length. Of several candidates the one with the most expected tokens is
    verified; what a drafter's tokens are worth is learnt from earlier drafts, so none has a fixed priority.
    """

    def __init__(self) -> None:
        self._acceptance = Acceptance()
        self._drafters: dict[int, Sequence[Proposer]] = {}

    def start(self, request: RequestView, drafters: Sequence[Proposer]) -> None:
        self._drafters[request.id] = drafters

    def limits(
        self,
        requests: Sequence[RequestView],
        load: Load,  # noqa: ARG002
    ) -> Mapping[str, Sequence[DraftLimit | None]]:
        names = {drafter.name for request in requests for drafter in self._drafters[request.id]}
        return {name: [UNLIMITED] * len(requests) for name in sorted(names)}

    def further(
        self,
        requests: Sequence[RequestView],  # noqa: ARG002
        candidates: Sequence[Sequence[Draft]],  # noqa: ARG002
        load: Load,  # noqa: ARG002
    ) -> Mapping[str, Sequence[DraftLimit | None]]:
        return {}

    def choose(
        self,
        requests: Sequence[RequestView],
        candidates: Sequence[Sequence[Draft]],
        load: Load,  # noqa: ARG002
    ) -> list[Choice]:
        return [self._best(request, drafts) for request, drafts in zip(requests, candidates, strict=True)]

    def _best(self, request: RequestView, drafts: Sequence[Draft]) -> Choice:
        if not drafts:
            return Choice(None, Reason.NOTHING_FOUND)
        survivals = self._acceptance.survivals(request.id, drafts, request.tokens[-1])
        best = max(range(len(drafts)), key=lambda i: sum(survivals[i]))
        return Choice(sampled(drafts) or drafts[best])

    def observe(self, rounds: Sequence[Round]) -> None:
        for measured in rounds:
            for request, outcome in measured.outcomes:
                self._acceptance.score(request, outcome.tokens)

    def stop(self, request: RequestView) -> None:
        self._acceptance.forget(request.id)
        self._drafters.pop(request.id, None)
