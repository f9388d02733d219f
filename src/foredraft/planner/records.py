"""What was decided in a round, and why: numbers and names, never a text or a token of one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from foredraft.planner.acceptance import depths
from foredraft.types import Reason


@dataclass(frozen=True, slots=True)
class Candidate:
    """A draft that was proposed. `features` is what its drafter gave with it; `survival` what the planner
    expected of each token, empty where it estimates nothing. `width` as in `RequestRecord`.
    """

    source: str
    length: int
    features: Mapping[str, float]
    survival: tuple[float, ...]
    width: int = 1


@dataclass(frozen=True, slots=True)
class RequestRecord:
    """What a round did for one request: the drafters called, their candidates, and what was verified.

    `source`, `length` and `width` are those of the verified draft; None and 0 where there was none, and
    `reason` is why. A draft of width 1 is a chain; a wider one is a tree of `length` nodes, at most `width`
    of them at one depth. `source` may be several drafters of one tree, joined by "+". `gain` is the expected
    rate relative to plain decoding, None where none was estimated. `committed` counts the accepted tokens and
    the target's own.
    """

    request: int
    asked: tuple[str, ...]
    candidates: tuple[Candidate, ...]
    source: str | None
    length: int
    gain: float | None
    reason: Reason | None
    accepted: int
    committed: int
    width: int = 0


@dataclass(frozen=True, slots=True)
class RoundRecord:
    """One round of decoding as it was decided and measured. `number` counts them from 1.

    `rows` of the forward, `prefill_rows` of them of prompts; `depth` is the largest KV length. Milliseconds
    as in `types.Round`.
    """

    number: int
    rows: int
    prefill_rows: int
    depth: int
    draft_ms: Mapping[str, float]
    plan_ms: float
    forward_ms: float
    sample_ms: float
    late_ms: float
    choices: tuple[RequestRecord, ...]


def width_of(parents: Sequence[int] | None) -> int:
    """The most tokens that a draft with these parents has at the same depth; 1 for a chain."""
    if parents is None:
        return 1
    levels = depths(parents)
    return max(map(levels.count, levels))
