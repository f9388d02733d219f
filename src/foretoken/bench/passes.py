"""Which prompts are answered in which pass: all of them in the first ones, short answers in further ones.

An answer of ten tokens is over after forty milliseconds, in which a shared machine is off by 3 to 4 %, and
the worst of many prompts is then whichever of the short ones had bad luck. So these are answered again, in
passes of their own, until as many of their tokens were measured as of a longer answer (docs/experiments.md).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from foretoken.bench.results import SHORTEST
from foretoken.bench.workloads import PromptCase

ENOUGH = 128
"""Tokens of an answer, in each of the passes over all prompts, from which it needs no further ones."""


class Passes:
    """The cases of pass after pass: `repeat` passes over all of them, then those over short answers, which
    have fewer than `enough` tokens. 0: no answer is short.
    """

    def __init__(self, cases: Sequence[PromptCase], repeat: int, enough: int = 0) -> None:
        self._cases = cases
        self.repeat = repeat
        self._tokens = repeat * enough
        self._shortest: dict[str, int] = {}

    def __iter__(self) -> Iterator[Sequence[PromptCase]]:
        for _ in range(self.repeat):
            yield self._cases
        done = self.repeat
        while short := [case for case in self._cases if self._needed(case) > done]:
            yield short
            done += 1

    def answered(self, case: PromptCase, tokens: int) -> None:
        """A turn of it was answered in so many tokens. One too short to have a rate needs no further pass."""
        if tokens >= SHORTEST:
            self._shortest[case.id] = min(tokens, self._shortest.get(case.id, tokens))

    def _needed(self, case: PromptCase) -> int:
        """Passes over this case, as far as is known."""
        tokens = self._shortest.get(case.id)
        return self.repeat if tokens is None else max(self.repeat, -(-self._tokens // tokens))

    @property
    def count(self) -> int:
        """How often cases are answered in all, by each side, as far as is known."""
        return sum(map(self._needed, self._cases))
