"""From places to rounds: how far drafts are accepted in a run, by depth and by their length.

A run drafts a fixed number of tokens in every round, and where a round begins depends on what was accepted
before: where drafts are right few of them begin. So rounds are replayed along the text. Given the text that
the target writes, the first i tokens of a draft are accepted with a probability that is a product over the
places: 1 or 0 under the rule `match`; Π min(1, q ÷ p) under `rejection`, as the target's token comes from an
accepted draft with probability min(p, q) ÷ p; and the smallest of 1 and the products Π q ÷ p of its
beginnings under `block` (of Sun et al.'s pᵢ = min(pᵢ₋₁ · p ÷ q, 1), the probability of acceptance given the
draft, times Π q ÷ p). What begins where is then a sum over the paths, in one pass: no number is drawn.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from foredraft.draft.passages import DEPTHS, Passage
from foredraft.draft.places import Place

Rule: TypeAlias = Literal["match", "rejection", "block"]
RULES: tuple[Rule, ...] = ("match", "rejection", "block")

_NEGLIGIBLE = 1e-9


def survival(rule: Rule, places: Sequence[Place]) -> list[float]:
    """The probability that the first 1, 2, … tokens of a draft are all accepted."""
    found: list[float] = []
    right, product, least = 1.0, 1.0, 1.0
    for place in places:
        product *= place.ratio
        least = min(least, product)
        right *= place.agrees if rule == "match" else min(1.0, place.ratio)
        found.append(least if rule == "block" else right)
    return found


@dataclass(slots=True)
class Counts:
    """Expected counts of rounds whose drafts are `length` tokens long, where the text has room for them.

    `reached[d]`: draft tokens at depth d whose ancestors were accepted; `accepted[d]`: those accepted, too.
    """

    length: int
    rounds: float = 0.0
    reached: list[float] = field(default_factory=list)
    accepted: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.reached = self.reached or [0.0] * self.length
        self.accepted = self.accepted or [0.0] * self.length

    @property
    def tokens(self) -> float:
        """Tokens of a round on average, with the target's own: the acceptance length."""
        return 1.0 + sum(self.accepted) / self.rounds if self.rounds else 1.0

    @property
    def by_depth(self) -> list[float | None]:
        """The share of tokens accepted at each depth of those whose ancestors were; None where none was."""
        pairs = zip(self.accepted, self.reached, strict=True)
        return [accepted / reached if reached > _NEGLIGIBLE else None for accepted, reached in pairs]

    @property
    def survival(self) -> list[float | None]:
        """The share of drafts accepted up to each depth: a run's `accepted_by_depth` ÷ drafts."""
        drafts = self.reached[0]
        return [accepted / drafts if drafts else None for accepted in self.accepted]

    @property
    def acceptance(self) -> float | None:
        """The share of all tokens whose ancestors were accepted."""
        reached = sum(self.reached)
        return sum(self.accepted) / reached if reached > _NEGLIGIBLE else None

    def add(
        self,
        passage: Passage,
        survivals: Sequence[Sequence[float]],
        visit: Callable[[int, int, float], None] | None = None,
    ) -> None:
        """Replay a passage; `survivals[i]` are those of a draft at its i-th start. `visit(i, depth, weight)`
        is called for every draft token with the expected number of times that its ancestors are accepted.
        """
        begins = [0.0] * (passage.scored + DEPTHS + 2)
        begins[1 if passage.opens else 0] = 1.0
        for i, found in enumerate(survivals):
            times = begins[i]
            if times < _NEGLIGIBLE:
                continue
            self.rounds += times
            before, room = 1.0, min(self.length, passage.room(passage.first + i))
            for depth in range(room):
                after = found[depth] if depth < len(found) else 0.0
                self.reached[depth] += times * before
                self.accepted[depth] += times * after
                if visit is not None and depth < len(found):
                    visit(i, depth, times * before)
                begins[i + depth + 1] += times * (before - after)
                before = after
                if before < _NEGLIGIBLE:
                    break
            begins[i + room + 1] += times * before
