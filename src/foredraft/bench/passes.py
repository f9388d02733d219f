"""Which prompts are answered in which pass: all of them in the first ones, some again in further ones.

An answer of ten tokens is over after forty milliseconds, in which a shared machine is off by 3 to 4 %, and
the worst of many prompts is then whichever of the short ones had bad luck. So short answers are measured
again, in passes of their own, until as many of their tokens were as of a longer answer; and so are those that
came out slower than plain decoding, until it is known whether they are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import inf, log, sqrt
from statistics import median

from foredraft.bench.results import SHORTEST
from foredraft.bench.workloads import PromptCase

ENOUGH = 128
"""Tokens of an answer, in each of the passes over all prompts, from which it needs no further ones."""

SETTLED = 0.005
"""Standard error at which a speedup under 1 needs no further passes."""

MOST, MOST_SLOW = 8, 32
"""Multiples of the tokens that are enough otherwise, after which it needs none either; the second for one
under `SLOW`, which may be the worst of all."""

SLOW = 0.98

FEWEST = 4
"""Passes from which there is a standard error."""


class Passes:
    """The cases of pass after pass: `repeat` passes over all of them, then those over short answers, which
    have fewer than `enough` tokens, and slow ones, unless there is one pass only. `enough` 0:
    there are no further passes.
    """

    def __init__(self, cases: Sequence[PromptCase], repeat: int, enough: int = 0) -> None:
        self._cases = cases
        self.repeat = repeat
        self._tokens = repeat * enough
        self._shortest: dict[str, int] = {}
        self._speedups: dict[str, dict[str, list[float]]] = {}

    def __iter__(self) -> Iterator[Sequence[PromptCase]]:
        for _ in range(self.repeat):
            yield self._cases
        done = self.repeat
        while again := [case for case in self._cases if self._needed(case) > done or self._doubtful(case)]:
            yield again
            done += 1

    def answered(self, case: PromptCase, tokens: int) -> None:
        """A turn of it was answered in `tokens`. One too short to have a rate needs no further pass."""
        if tokens >= SHORTEST:
            self._shortest[case.id] = min(tokens, self._shortest.get(case.id, tokens))

    def compared(self, case: PromptCase, turn: str, speedup: float) -> None:
        """In the present pass this turn of it had this speedup over plain decoding."""
        self._speedups.setdefault(case.id, {}).setdefault(turn, []).append(speedup)

    def _needed(self, case: PromptCase) -> int:
        """Passes over this case, as far as is known, however fast it is."""
        tokens = self._shortest.get(case.id)
        return self.repeat if tokens is None else max(self.repeat, -(-self._tokens // tokens))

    def _doubtful(self, case: PromptCase) -> bool:
        """Whether a turn of it came out slower, and more passes could tell more surely by how much."""
        if self.repeat < 2:  # a quick look
            return False
        enough = self._tokens / self._shortest.get(case.id, 1)
        return any(
            (speedup := median(speedups)) < 1.0
            and len(speedups) < enough * (MOST_SLOW if speedup < SLOW else MOST)
            and standard_error(speedups) > SETTLED
            for speedups in self._speedups.get(case.id, {}).values()
        )

    @property
    def count(self) -> int:
        """How often cases are answered in all, by each side, as far as is known."""
        return sum(max(self._needed(case), self._passed(case)) for case in self._cases)

    def _passed(self, case: PromptCase) -> int:
        return max(map(len, self._speedups.get(case.id, {}).values()), default=0)


def standard_error(speedups: Sequence[float]) -> float:
    """Of the median of a prompt's speedups, as a share, whatever they are spread like: half the distance
    between the values √n/2 places or a little more below it and above. Infinite of fewer than `FEWEST`.
    """
    count = len(speedups)
    if count < FEWEST:
        return inf
    ordered = sorted(map(log, speedups))
    below = int((count - 1 - sqrt(count)) / 2)
    return (ordered[count - 1 - below] - ordered[below]) / 2
