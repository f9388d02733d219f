"""Rounds for planner tests: what a planner would see of an engine, without one, on a cost curve of choice."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from foredraft.protocols import Planner, Proposer, RequestView
from foredraft.types import Draft, Load, Outcome, Round

PLAIN_MS = 10.0
"""Time of a forward of one row."""

BONUS = 1_000_000
"""The target's own token after a draft."""

Curve = Callable[[int], float]
"""V(n)/V(1) for n rows."""


def linear(slope: float) -> Curve:
    return lambda rows: 1.0 + slope * (rows - 1)


def teach(planner: Planner, curve: Curve, most: int = 70) -> None:
    """Let the planner observe forwards of every size, each followed by plain ones, as at start-up."""
    sizes = [1, 1]
    for rows in range(2, most + 1):
        sizes += [rows, 1, 1]
    planner.observe([Round(Load(1, 0, 0), rows, {}, PLAIN_MS * curve(rows), 0.0, ()) for rows in sizes])


def chain(length: int, source: str = "s", **features: float) -> Draft:
    """A draft of which no token is another source's."""
    first = 10 * sum(source.encode())
    return Draft(tuple(range(first, first + length)), source, features=features)


@dataclass
class Game:
    """One request, decoded round by round. `accept(draft)` says how many tokens of a draft are right."""

    planner: Planner
    curve: Curve
    request: RequestView = field(default_factory=lambda: RequestView(1, [0], prompt_length=1))
    decoding: int = 1
    draft_ms: float = 0.001
    ms: float = 0.0
    tokens: int = 0
    _started: bool = False

    def round(self, drafts: Sequence[Draft], accept: Callable[[Draft], int]) -> Draft | None:
        """Play a round with these candidates; returns what was verified."""
        load = Load(self.decoding, 0, len(self.request.tokens))
        names = sorted({draft.source for draft in drafts})
        if not self._started:
            self._started = True
            self.planner.start(self.request, [Proposer(name, lambda _: 0) for name in names])
        limits = self.planner.limits([self.request], load)
        asked = {name: limits[name][0] for name in names if name in limits}
        candidates = [
            draft.cut(limit.max_tokens) for draft in drafts if (limit := asked.get(draft.source)) is not None
        ]
        [choice] = self.planner.choose([self.request], [candidates], load)
        chosen = choice.draft
        truth = max(drafts, key=accept, default=None)
        right = truth.tokens[: accept(truth)] if truth is not None else ()
        accepted = min(accept(chosen), len(chosen)) if chosen is not None else 0
        committed = (*right[:accepted], right[accepted] if accepted < len(right) else BONUS)
        rows = self.decoding + (len(chosen) if chosen is not None else 0)
        forward = PLAIN_MS * self.curve(rows)
        spent = {name: self.draft_ms for name, limit in asked.items() if limit is not None}
        outcome = Outcome(len(self.request.tokens), committed, chosen, accepted)
        self.request.tokens.extend(committed)
        self.planner.observe([Round(load, rows, spent, forward, 0.0, ((self.request.id, outcome),))])
        self.ms += forward + sum(spent.values())
        self.tokens += len(committed)
        return chosen

    def play(self, count: int, drafts: Sequence[Draft], accept: Callable[[Draft], int]) -> list[Draft | None]:
        return [self.round(drafts, accept) for _ in range(count)]


def all_right(draft: Draft) -> int:
    return len(draft)


def all_wrong(_draft: Draft) -> int:
    return 0
