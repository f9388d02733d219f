"""`ngram-simple`: the tokens after the most recent earlier occurrence of the text's end.

Prompt lookup (Saxena 2023; "LLMA", Yang et al. 2023, arXiv 2304.04487) with one n-gram size, as llama.cpp's
`ngram-simple`. Memory: one NgramIndex a request.
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

NAME = "ngram-simple"


@checked_by(partial(match_options, NAME))
def create(context: DrafterContext, options: Mapping[str, str]) -> Drafter:  # noqa: ARG001
    """Create the drafter. Options: n, m, min-hits. Raises SpeculationStringError."""
    return match_drafter(NAME, options, propose)


def propose(index: NgramIndex, tokens: Sequence[int], options: MatchOptions, most: int) -> Draft | None:
    """The tokens after the most recent earlier occurrence of the last n."""
    places = index.recent(tokens, 1)
    if not places:
        return None
    return Draft(
        tokens=tuple(copy_from(tokens, places[0], most)),
        source=NAME,
        features={
            "match_length": match_length(tokens, places[0], options.n),
            "count": index.count(),
        },
    )
