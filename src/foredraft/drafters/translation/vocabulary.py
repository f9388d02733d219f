"""Two vocabularies side by side: which tokens they share, by the bytes that the tokens stand for."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import numpy as np

from foredraft.protocols import Tokenizer

_MARKUP = re.compile(r"<[^<>\s]{1,40}>|\[/?[A-Z_]{2,40}\]")
"""How control tokens are written in chat templates: <|im_start|>, </s>, [INST]."""


class VocabularyPair:
    """`to_draft[t]` is the draft model's token of the same bytes as the target's token t, `to_target` the way
    back, `first[d]` the target's token that the bytes of the draft's token d begin with (the same token where
    it is shared); −1 for none. Every end of a text is one end: the draft's ends are the target's.

    `share` is the part of the target's tokens that the draft model has too.
    """

    def __init__(self, target: Tokenizer, draft: Tokenizer) -> None:
        ours, theirs = _by_bytes(target), _by_bytes(draft)
        self.to_draft = np.full(target.vocab_size, -1, np.int64)
        self.to_target = np.full(draft.vocab_size, -1, np.int64)
        shared = [(token, theirs[piece]) for piece, token in ours.items() if piece in theirs]
        for own, other in shared:
            self.to_draft[own], self.to_target[other] = other, own
        self.shared = len(shared)
        self.share = len(shared) / max(1, len(ours))
        self._pair_ends(target, draft)
        self._ours = ours
        self._longest = max(map(len, ours), default=0)
        self.first = self.to_target.copy()
        for other in np.flatnonzero(self.first < 0).tolist():
            self.first[other] = self.beginning(draft.token_bytes(other))
        self.control = dict(_control_tokens(target, draft))
        """What the draft model reads in the place of a control token of the target."""

    def beginning(self, text: bytes) -> int:
        """The target's token of as many of the text's first bytes as possible; −1 if there is none."""
        lengths = range(min(len(text), self._longest), 0, -1)
        return next((self._ours[text[:n]] for n in lengths if text[:n] in self._ours), -1)

    def _pair_ends(self, target: Tokenizer, draft: Tokenizer) -> None:
        for own, other in zip(sorted(target.end_tokens), sorted(draft.end_tokens), strict=False):
            self.to_draft[own], self.to_target[other] = other, own


def _by_bytes(tokenizer: Tokenizer) -> dict[bytes, int]:
    """The token of each run of bytes: of several, the one that the tokenizer writes."""
    tokens: dict[bytes, int] = {}
    for token in range(tokenizer.vocab_size):
        piece = tokenizer.token_bytes(token)
        if not piece:
            continue
        if piece not in tokens or _writes(tokenizer, piece) == token:
            tokens[piece] = token
    return tokens


def _writes(tokenizer: Tokenizer, piece: bytes) -> int | None:
    try:
        tokens = tokenizer.encode(piece.decode())
    except UnicodeDecodeError:
        return None
    return tokens[0] if len(tokens) == 1 else None


def _control_tokens(target: Tokenizer, draft: Tokenizer) -> Iterator[tuple[int, Sequence[int]]]:
    """Tokens of the target that stand for no text, as the draft model writes the same mark-up.

    A tokenizer knows its control tokens by their spelling only, and the chat template spells them.
    """
    for spelling in sorted(set(_MARKUP.findall(target.chat_template or ""))):
        tokens = target.encode(spelling, special=True)
        if len(tokens) == 1 and not target.token_bytes(tokens[0]):
            yield tokens[0], draft.encode(spelling, special=True)
