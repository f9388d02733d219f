"""Two vocabularies compared: the tokens they share, by the tokens' bytes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import numpy as np

from foredraft.protocols import Tokenizer

_MARKUP = re.compile(r"<[^<>\s]{1,40}>|\[/?[A-Z_]{2,40}\]")
"""The spelling of control tokens in chat templates: <|im_start|>, </s>, [INST]."""


class VocabularyPair:
    """`to_draft[t]` is the draft model's token with the same bytes as the target's token t, `to_target` the
    inverse, `first[d]` the target's token that the bytes of the draft model's token d start with (the same
    token if it is shared); −1 for none. All end tokens are paired: the draft model's with the target's.

    `share` is the fraction of the target's tokens that the draft model has too.
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
        """The draft model's tokens in place of a control token of the target."""

    def beginning(self, text: bytes) -> int:
        """The target's token with the most leading bytes of the text; −1 if there is none."""
        lengths = range(min(len(text), self._longest), 0, -1)
        return next((self._ours[text[:n]] for n in lengths if text[:n] in self._ours), -1)

    def _pair_ends(self, target: Tokenizer, draft: Tokenizer) -> None:
        for own, other in zip(sorted(target.end_tokens), sorted(draft.end_tokens), strict=False):
            self.to_draft[own], self.to_target[other] = other, own


def _by_bytes(tokenizer: Tokenizer) -> dict[bytes, int]:
    """The token for each byte string: of several, the one that the tokenizer produces."""
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
    """The target's tokens without text, each with the draft model's tokens for the same mark-up.

    A tokenizer recognises its control tokens by their spelling, which is the one in the chat template.
    """
    for spelling in sorted(set(_MARKUP.findall(target.chat_template or ""))):
        tokens = target.encode(spelling, special=True)
        if len(tokens) == 1 and not target.token_bytes(tokens[0]):
            yield tokens[0], draft.encode(spelling, special=True)
