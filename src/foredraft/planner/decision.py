"""What was decided in a round, and why: numbers and names, never a text or a token of one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple


class Why(StrEnum):
    """Why nothing was drafted for a request in a round."""

    MEASURING = "the cost of plain decoding is measured"
    NOT_ASKED = "no drafter was asked: drafts have not been promising enough to look for one"
    NO_ROOM = "no draft is allowed here: the answer is about to end, or drafting is switched off for it"
    NOTHING_FOUND = "no drafter found anything to propose"
    NOT_CHOSEN = "the planner chose none of the drafts"
    NOT_WORTH = "no draft is expected to pay for its verification"
    TOO_RISKY = "the draft would risk more than this request may lose"
    SHARED = "the draft does not pay in a forward shared with other requests"
    NO_CELLS = "the KV cache had no room for the draft"
    FAILED = "the request ended with an error"


class Estimate(NamedTuple):
    """What a planner expected of one request's candidates.

    `gain`: the rate that the best of them could reach alone, over plain decoding (1.2 is 20 % faster); None
    where a draft is verified whatever it is expected to bring. `pays`: that was enough. `survival[i][k]`: of
    token k of candidate i. `allowed`: tokens that the request's stake allows.
    """

    gain: float | None
    pays: bool
    survival: Sequence[Sequence[float]]
    allowed: int


def width_of(parents: Sequence[int] | None) -> int:
    """The most tokens that a draft with these parents has at the same depth; 1 for a chain."""
    if parents is None:
        return 1
    depths: list[int] = []
    widths: list[int] = []
    for parent in parents:
        depth = 0 if parent < 0 else depths[parent] + 1
        depths.append(depth)
        widths.extend([0] * (depth + 1 - len(widths)))
        widths[depth] += 1
    return max(widths)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A draft that was proposed. `features` is what its drafter knew of it; `survival` what the planner
    expected of each token, empty where it estimates nothing. `width` as in `Choice`.
    """

    source: str
    length: int
    features: Mapping[str, float]
    survival: tuple[float, ...]
    width: int = 1


@dataclass(frozen=True, slots=True)
class Choice:
    """What a round did for one request: who was asked, what they proposed, and what was verified of it.

    `source`, `length` and `width` are of the draft that was verified, None and 0 where there was none;
    `reason` then says why. A draft of width 1 is a chain; a wider one is a tree of `length` nodes with at
    most `width` of them at the same depth. `source` may be several drafters of one tree, joined by "+".
    `gain` is the expected rate over plain decoding, None where nobody estimated it. `committed` counts the
    accepted tokens and the target's own.
    """

    request: int
    asked: tuple[str, ...]
    candidates: tuple[Candidate, ...]
    source: str | None
    length: int
    gain: float | None
    reason: Why | None
    accepted: int
    committed: int
    width: int = 0


@dataclass(frozen=True, slots=True)
class Decision:
    """One round of decoding as it was decided and measured. `number` counts them from 1.

    `rows` of the forward, `prefill_rows` of them of prompts; `depth` is the largest KV length. Milliseconds
    as in `Round`; `planner_ms` is what the planner itself took, learning included, by the wall clock even
    where the engine has another one.
    """

    number: int
    rows: int
    prefill_rows: int
    depth: int
    draft_ms: Mapping[str, float]
    plan_ms: float
    forward_ms: float
    sample_ms: float
    planner_ms: float
    choices: tuple[Choice, ...]
