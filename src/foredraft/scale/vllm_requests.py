"""vLLM's requests, known again from one call to the next by what they say.

vLLM tells a proposer rows: the tokens that each holds, and how many of them were just sampled. It does not
tell which request is in a row, where its prompt ends, or that one is over; and when one ends, another takes
its row. So a row is that of a request we know if its text before the sampled tokens is the whole text of that
request. The row it was in is tried first, then all others of that length. Two requests with one text are the
same to everything that depends on texts; which of them a row is, is told by their drafts as far as it can be.

Memory: a request's tokens as Python numbers and as 32-bit integers, and what drafters keep. A request that
was in no call for `IDLE_CALLS` is over, and the oldest ones are where there are more than `most`: one that
was only preempted is read again when it comes back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from foredraft.engine.stats import RequestStats
from foredraft.protocols import RequestView
from foredraft.types import Draft

Ids = npt.NDArray[np.int32]
Integers = npt.NDArray[np.integer]

IDLE_CALLS = 64
"""Calls without a request after which it is taken to be over."""

MISSED_TOKENS = 64
"""Tokens that a request may have got in calls that were never made: vLLM makes none while a request is within
`num_speculative_tokens` of the context's end."""


class Everything:
    """Any draft may be accepted as far as we know: vLLM applies grammars itself."""

    def prune(self, draft: Draft) -> Draft | None:
        """The draft as it is."""
        return draft


@dataclass(slots=True, eq=False)
class Known:
    """A request. `text` holds its `length` tokens as vLLM has them; in `view` ids that are no tokens are
    replaced. `draft`: what was proposed for it in the call number `call`, its last.
    """

    view: RequestView
    text: Ids
    length: int
    stats: RequestStats
    sampler: Everything = field(default_factory=Everything)
    draft: Draft | None = None
    call: int = 0

    @property
    def id(self) -> int:
        return self.view.id

    def begins(self, row: Ids) -> bool:
        """Whether the row begins with the whole text of this request."""
        return self.text[: self.length].tobytes() == row[: self.length].tobytes()

    def explains(self, sampled: Sequence[int]) -> bool:
        """Whether these tokens could be what was sampled after its draft: of it, and one more."""
        if len(sampled) == 1:
            return True
        drafted = self.draft.tokens if self.draft else ()
        return len(sampled) <= len(drafted) + 1 and tuple(sampled[:-1]) == drafted[: len(sampled) - 1]


class Row(NamedTuple):
    """A row in which tokens were sampled. `kept`: the tokens of the request that were known before, or of
    its prompt if it is new. `call`: the number of the call that it was in before, 0 if it is new.
    """

    place: int
    request: Known
    kept: int
    sampled: Sequence[int]
    call: int


class Requests:
    """All requests that are known, at most `most` beside those of the last call. Of ids only 0 to
    `vocabulary` - 1 are tokens; drafters see that number for any other. `started` is called with a new
    request whose view has its prompt, `stopped` with one that is over.
    """

    def __init__(
        self,
        vocabulary: int,
        most: int,
        stats: RequestStats,
        started: Callable[[RequestView], None],
        stopped: Callable[[RequestView], None],
    ) -> None:
        self.call = 0
        """The number of the last call, from 1 on."""
        self._vocabulary, self._most, self._stats = vocabulary, most, stats
        self._started, self._stopped = started, stopped
        self._known: dict[int, Known] = {}  # by id, the one that was in the latest call last
        self._rows: dict[int, Known] = {}
        self._ids = count(1)

    def __len__(self) -> int:
        return len(self._known)

    def find(
        self,
        sampled: Sequence[Sequence[int]],
        lengths: Integers,
        tokens: Integers,
    ) -> list[Row]:
        """The rows of a call in which tokens were sampled, each with its request, in order. The texts of the
        requests then have the sampled tokens.
        """
        self.call += 1
        asked = [place for place, its in enumerate(sampled) if len(its)]
        tokens = tokens.astype(np.int32, copy=False)
        ends: list[int] = lengths[: len(sampled)].tolist()
        found = {place: known for place in asked if (known := self._stayed(place, sampled, ends, tokens))}
        if len(found) < len(asked):
            self._find_moved(asked, sampled, ends, tokens, found)
        rows = [
            self._follow(place, found.get(place), sampled[place], tokens[place, : ends[place]])
            for place in asked
        ]
        self._rows = {row.place: row.request for row in rows}
        return rows

    def _stayed(
        self,
        place: int,
        sampled: Sequence[Sequence[int]],
        lengths: Sequence[int],
        tokens: Integers,
    ) -> Known | None:
        """The request that was in this row, if it still is and its draft explains what came."""
        known = self._rows.get(place)
        if known is None or known.length + len(sampled[place]) != lengths[place]:
            return None
        return known if known.explains(sampled[place]) and known.begins(tokens[place]) else None

    def _find_moved(
        self,
        asked: Sequence[int],
        sampled: Sequence[Sequence[int]],
        lengths: Sequence[int],
        tokens: Integers,
        found: dict[int, Known],
    ) -> None:
        """Add the requests of rows that are not in `found` yet, where they are known."""
        taken = {known.id for known in found.values()}
        by_length: dict[int, list[Known]] = {}
        for known in reversed(self._known.values()):  # the latest first
            if known.id not in taken:
                by_length.setdefault(known.length, []).append(known)
        left = [place for place in asked if place not in found]
        for missed in range(MISSED_TOKENS + 1):
            for place in [place for place in left if place not in found]:
                length = lengths[place] - len(sampled[place]) - missed
                same = [
                    known
                    for known in by_length.get(length, ())
                    if known.begins(tokens[place]) and (not missed or known.call == self.call - 1)
                ]
                if same:
                    known = next((it for it in same if not missed and it.explains(sampled[place])), same[0])
                    by_length[length].remove(known)
                    found[place] = known

    def _follow(self, place: int, known: Known | None, sampled: Sequence[int], row: Integers) -> Row:
        """The row of a request, which then has its text; a new request if none is known."""
        if known is None:
            known, kept, before = self._begin(row, len(row) - len(sampled)), len(row) - len(sampled), 0
        else:
            kept, before = known.length, known.call
        known.call = self.call
        self._known[known.id] = self._known.pop(known.id, known)
        if len(row) > len(known.text):
            known.text = np.concatenate([known.text, np.empty(max(len(row), 64), np.int32)])
        came = row[kept:]
        known.text[kept : len(row)] = came
        known.length = len(row)
        known.view.tokens += self._seen(came.tolist())
        return Row(place, known, kept, sampled, before)

    def _begin(self, row: Integers, prompt: int) -> Known:
        tokens = self._seen(row[:prompt].tolist())
        view = RequestView(next(self._ids), tokens, prompt_length=prompt)
        known = Known(view, row[:prompt].astype(np.int32), prompt, self._stats)
        self._started(view)
        return known

    def _seen(self, ids: Sequence[int]) -> list[int]:
        """The ids as drafters see them."""
        vocabulary = self._vocabulary
        return [it if 0 <= it < vocabulary else vocabulary for it in ids]

    def forget_idle(self) -> None:
        """Requests that are over, as far as can be told, are stopped."""
        while self._known:
            oldest = next(iter(self._known.values()))
            idle = self.call - oldest.call
            if not idle or (idle < IDLE_CALLS and len(self._known) <= self._most):
                return
            self._stop(oldest)

    def forget_all(self) -> None:
        """All requests are over."""
        for known in list(self._known.values()):
            self._stop(known)
        self._rows.clear()

    def _stop(self, known: Known) -> None:
        del self._known[known.id]
        self._stopped(known.view)
