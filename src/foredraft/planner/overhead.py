"""What asking drafters costs a round beside their own time: planning, choosing, telling them more."""

from __future__ import annotations

from foredraft.planner.tables.window import Window
from foredraft.types import Round

PRIOR_MS = 0.3
"""What asking is taken to add before it was ever measured: a CPU's. If every round asked, it never would be.
"""

FEWEST = 3
"""Rounds in which drafters were asked, from which what they took is believed. Of fewer it is in part, be it
less than was supposed or more: runs that end after a question or two would otherwise only ever hand on the
least that any of them saw.
"""

AT_MOST = 2.0
"""Until then it is at most so many times what was supposed: one of them may be a stall."""

DOUBTED = 128
"""Rounds without a question after which the dearer half of those that were measured is forgotten. Who is too
dear to be asked is not measured any more: a busy moment would have the last word.
"""


class _Rounds:
    """Rounds of as many requests: what those took in which drafters were asked, and the others."""

    def __init__(self, prior: float) -> None:
        self.asked, self.others = Window(), Window()
        self._prior = prior
        self.more: float | None = None
        self._unasked = 0

    def changed(self) -> None:
        """What asking adds is another value now."""
        known = len(self.asked)
        if known and len(self.others):
            more = max(0.0, self.asked.median() - self.others.median())
            if known < FEWEST:
                more = min(more, AT_MOST * max(self._prior, PRIOR_MS))
                more = self._prior + (more - self._prior) * known / FEWEST
            self.more = more

    def passed(self, *, asked: bool) -> None:
        """A round is over."""
        self._unasked = 0 if asked else self._unasked + 1
        if self._unasked == DOUBTED and len(self.asked):
            self._unasked = 0
            self.asked.forget_dearer_half()
            if len(self.asked):
                self.changed()
            elif self.more is not None:
                self.more = min(self.more, self._prior)


class Overhead:
    """What a round takes beside drafting and its forward, when drafters were asked and when not."""

    def __init__(self) -> None:
        self._rounds: dict[int, _Rounds] = {}
        self._latest: Window | None = None
        self._prior = PRIOR_MS
        self._resting = Window()
        self._share: float | None = None

    def recall(self, ms: float) -> None:
        """What an earlier run has measured of one request, until this one has."""
        self._prior = ms

    def ms(self, requests: int) -> float:
        """What asking adds to a round of so many requests, in milliseconds: as it was of so many, or fewer,
        or more; what was recalled, or `PRIOR_MS`, before rounds of both kinds were seen.
        """
        seen = self._rounds.get(requests)
        if seen is not None and seen.more is not None:
            return seen.more
        known = {number: it.more for number, it in self._rounds.items() if it.more is not None}
        if not known:
            return self._prior
        return known[max([number for number in known if number < requests], default=min(known))]

    def learn(self, measured: Round) -> None:
        """A round is over; one of requests that decode is to be added."""
        requests = len(measured.outcomes)
        if requests:
            ms, asked = measured.plan_ms + measured.sample_ms, bool(measured.draft_ms)
            self.add(ms, asked=asked, requests=requests, late_ms=measured.late_ms)
            if not asked and measured.forward_ms > 0:
                self._resting.add(measured.plan_ms / measured.forward_ms)
                self._share = None

    def resting_share(self) -> float:
        """What a round in which nobody is asked takes before its forward, for example to look at the text's
        end, which is done in every other one: the share of that forward. 0 before such a round was seen.
        """
        if self._share is None:
            self._share = self._resting.middle_mean()
        return self._share

    def add(self, ms: float, *, asked: bool, requests: int = 1, late_ms: float = 0.0) -> None:
        """A round of so many requests took `ms` until it was learnt from, and the one before it `late_ms`
        more than was known then.
        """
        if self._latest is not None:
            self._latest.more(late_ms)
        rounds = self._rounds.get(requests)
        if rounds is None:
            rounds = self._rounds[requests] = _Rounds(self._prior)
        self._latest = rounds.asked if asked else rounds.others
        self._latest.add(ms)
        rounds.passed(asked=asked)
        if asked or len(self._latest) == 1:  # one plain round more changes little
            rounds.changed()
