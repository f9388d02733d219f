"""Converts bytes to the target's tokens in the context of its text, with their probabilities."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from foredraft.drafters.translation.pieces import Pieces, encode_bytes
from foredraft.drafters.translation.vocabulary import VocabularyPair
from foredraft.protocols import Tokenizer

CONTEXT = 64
"""Bytes of text before a draft that are tokenised with it, so that its first tokens depend on the context."""


def spell(target: Tokenizer, pair: VocabularyPair, context: bytes, text: bytes) -> Pieces:
    """The target's tokens of `text` after `context`, with their ends in `text`.

    If the tokenizer would split the context differently with this text (the target wrote "hel", the text is
    "lo"), the rest of that token is spelled with the longest possible tokens. An incomplete character at the
    end of the text is left out.
    """
    seam = len(context)
    whole = encode_bytes(target, context + text)
    spelled = Pieces()
    count = whole.after(seam)
    if count is None:
        count = bisect_right(whole.ends, seam)
        if count == len(whole):
            return spelled  # only the rest of an incomplete character
        end = whole.ends[count] - seam
        at = 0
        while at < end:
            token = pair.beginning(text[at:end])
            if token < 0:
                return spelled
            at += len(target.token_bytes(token))
            spelled.extend(Pieces([token], [at]))
        count += 1
    spelled.extend(whole, count, shift=-seam)
    return spelled


def products(starts: Sequence[int], probabilities: Sequence[float], ends: Sequence[int]) -> list[float]:
    """For each token that ends at one of `ends`, the product of the probabilities of the draft tokens that
    start in it; `starts` are the starts of the draft tokens.

    Spreading a probability over the token's bytes instead predicted acceptance no better (docs/drafters.md).
    """
    shares, at = [], 0
    for end in ends:
        share = 1.0
        while at < len(starts) and starts[at] < end:
            share *= probabilities[at]
            at += 1
        shares.append(share)
    return shares
