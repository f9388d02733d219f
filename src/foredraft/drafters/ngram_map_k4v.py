"""`ngram-map-k4v`: the m-gram that followed most often, if it is clearly preferred.

As in llama.cpp's `ngram-map-k4v`, up to four different m-grams (values) are distinguished after a key, and
the most frequent is chosen if it occurred at least twice as often as all others together; llama.cpp then
copies the tokens after the latest match, here the chosen value itself is drafted. Only the newest
`OCCURRENCES` occurrences count, so a draft takes bounded time and old text loses influence. Memory: one
NgramIndex a request.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from foredraft.config import checked_by
from foredraft.drafters.ngram_index import (
    MatchOptions,
    NgramIndex,
    copy_from,
    match_drafter,
    match_length,
    match_options,
)
from foredraft.protocols import Drafter, DrafterContext
from foredraft.types import Draft

NAME = "ngram-map-k4v"
VALUES = 4
OCCURRENCES = 32
PREFERRED = 2
"""The chosen value must occur at least this many times as often as all other values together."""


@checked_by(partial(match_options, NAME))
def create(context: DrafterContext, options: Mapping[str, str]) -> Drafter:  # noqa: ARG001
    """Create the drafter. Options: n, m, min-hits. Raises SpeculationStringError."""
    return match_drafter(NAME, options, propose)


def propose(index: NgramIndex, tokens: Sequence[int], options: MatchOptions, most: int) -> Draft | None:
    """The most frequent value after the last n tokens, with the share of occurrences that agree with it."""
    places = index.recent(tokens, OCCURRENCES)
    if not places:
        return None
    values, counts, newest = _values(tokens, places, options.m)
    chosen = max(range(len(values)), key=counts.__getitem__)
    if counts[chosen] < PREFERRED * (len(places) - counts[chosen]):
        return None
    value = values[chosen]
    others = [(values[v], counts[v]) for v in range(len(values)) if v != chosen]
    unknown = len(places) - sum(
        counts
    )  # occurrences with further values: they disagree from the first token on
    return Draft(
        tokens=tuple(value[:most]),
        source=NAME,
        confidence=_shares(value, counts[chosen], others, unknown)[:most],
        features={
            "match_length": match_length(tokens, newest[chosen], options.n),
            "count": index.count(),
            "value_count": counts[chosen],
        },
    )


def _values(
    tokens: Sequence[int], places: Sequence[int], m: int
) -> tuple[list[list[int]], list[int], list[int]]:
    """The newest `VALUES` different values, their numbers of occurrences, and their latest positions."""
    values: list[list[int]] = []
    counts: list[int] = []
    newest: list[int] = []
    for place in places:
        value = copy_from(tokens, place, m)
        if value in values:
            counts[values.index(value)] += 1
        elif len(values) < VALUES:
            values.append(value)
            counts.append(1)
            newest.append(place)
    return values, counts, newest


def _shares(
    value: Sequence[int], count: int, others: Sequence[tuple[Sequence[int], int]], unknown: int
) -> tuple[float, ...]:
    """For each token of `value`: the share of the occurrences agreeing so far that agree on it too."""
    parting = [unknown, *[0] * (len(value) - 1)]
    for other, times in others:
        parting[next(depth for depth in range(len(value)) if other[depth] != value[depth])] += times
    alive = count + unknown + sum(times for _, times in others)
    shares: list[float] = []
    for lost in parting:
        shares.append((alive - lost) / alive)
        alive -= lost
    return tuple(shares)
