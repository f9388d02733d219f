"""`ngram-map-k`: the tokens after the last occurrence, as many as were right there.

llama.cpp's `ngram-map-k` stores for each key how many tokens of its last draft were accepted and drafts no
more than that; a key without accepted tokens never drafts again. Here that number is computed from the
history: at the last occurrence a draft would have copied from the one before it, and the text shows how many
of its tokens were right. So it also learns from rounds without a draft or with another drafter's, it rises
again as soon as the text repeats, and removing text needs no bookkeeping. Memory: one NgramIndex a request.
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

NAME = "ngram-map-k"


@checked_by(partial(match_options, NAME))
def create(context: DrafterContext, options: Mapping[str, str]) -> Drafter:  # noqa: ARG001
    """Create the drafter. Options: n, m, min-hits. Raises SpeculationStringError."""
    return match_drafter(NAME, options, propose)


def propose(index: NgramIndex, tokens: Sequence[int], options: MatchOptions, most: int) -> Draft | None:
    """The tokens after the most recent earlier occurrence, at most as many as were right there."""
    places = index.recent(tokens, 2)
    if not places:
        return None
    accepted = options.m if len(places) == 1 else would_accept(tokens, places[1], places[0], options.m)
    if accepted == 0:
        return None
    return Draft(
        tokens=tuple(copy_from(tokens, places[0], min(accepted, most))),
        source=NAME,
        features={
            "match_length": match_length(tokens, places[0], options.n),
            "count": index.count(),
            "accepted": accepted,
        },
    )


def would_accept(tokens: Sequence[int], older: int, newer: int, most: int) -> int:
    """The number of tokens copied from `older` that were right at `newer`; `most` if none was wrong yet."""
    there, here = tokens[older : older + most], tokens[newer : newer + most]
    if there[: len(here)] == here:
        return most
    return next(depth for depth, token in enumerate(here) if token != there[depth])
