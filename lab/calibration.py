"""Is a probability of 70 % right seven times in ten? The planner's estimates against its drafts' outcomes.

Scored from outside, by what an engine tells of its decisions: each token of a verified chain up to the first
one that was wrong, by its probability given that those before it are right.
"""

from __future__ import annotations

from dataclasses import dataclass

from foredraft.planner.records import RequestRecord, RoundRecord

BINS = 10


@dataclass(frozen=True, slots=True)
class Bin:
    """Of `count` draft tokens the mean probability `predicted`, and the share `observed` that was right."""

    predicted: float
    observed: float
    count: int


class Calibration:
    """Predicted probabilities against outcomes, in `BINS` bins of equal width."""

    def __init__(self) -> None:
        self._tokens: list[list[tuple[float, bool]]] = [[] for _ in range(BINS)]

    def add(self, decision: RoundRecord) -> None:
        """A round is over."""
        for choice in decision.choices:
            for predicted, right in scored(choice):
                self._tokens[min(BINS - 1, int(predicted * BINS))].append((predicted, right))

    def bins(self) -> list[Bin]:
        """Those that hold anything, from unlikely to likely."""
        return [
            Bin(
                sum(predicted for predicted, _ in tokens) / len(tokens),
                sum(right for _, right in tokens) / len(tokens),
                len(tokens),
            )
            for tokens in self._tokens
            if tokens
        ]

    @property
    def error(self) -> float | None:
        """The expected calibration error (Naeini et al. 2015): the mean distance between the two, weighed by
        the tokens in a bin. None before anything was scored.
        """
        bins = self.bins()
        total = sum(found.count for found in bins)
        if not total:
            return None
        return sum(found.count * abs(found.predicted - found.observed) for found in bins) / total


def scored(choice: RequestRecord) -> list[tuple[float, bool]]:
    """Of each token of the verified draft that was looked at: its probability, and whether it was right.

    Nothing of a tree, and of a draft without estimates. A round without a token of the target's own ended
    inside the draft: what came after that token was not looked at.
    """
    survival = next((it.survival for it in choice.candidates if it.source == choice.source), ())
    if choice.width != 1 or not survival:
        return []
    ended = choice.committed == choice.accepted
    looked_at = min(choice.length, choice.accepted + (not ended), len(survival))
    before = (1.0, *survival)
    return [
        (min(1.0, survival[i] / before[i]) if before[i] > 0 else 0.0, i < choice.accepted)
        for i in range(looked_at)
    ]
