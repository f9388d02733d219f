"""A request in the draft model's tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from foredraft.drafters.translation.mirror import Mirror
from foredraft.drafters.translation.pieces import Pieces
from foredraft.drafters.translation.spelling import CONTEXT, spell
from foredraft.drafters.translation.vocabulary import VocabularyPair
from foredraft.protocols import RequestView, Tokenizer
from foredraft.types import SamplingParams

ALIKE = 0.9
"""`auto` drafts shared tokens if both tokenizers split at least this share of the recent text alike. Measured
with n-gram models of code, each in its own tokens: at 0.98 both methods made the same progress per round; at
0.88, 0.68 and 0.50 drafts of text made 6, 14 and 16 % more.
"""


@dataclass(frozen=True, slots=True)
class Languages:
    """The two tokenizers and their shared vocabulary."""

    target: Tokenizer
    draft: Tokenizer
    pair: VocabularyPair

    @classmethod
    def of(cls, target: Tokenizer, draft: Tokenizer) -> Languages:
        """Compare two tokenizers' vocabularies; takes 0.3 s for 49,152 tokens each."""
        return cls(target, draft, VocabularyPair(target, draft))


@dataclass(slots=True)
class Twin:
    """`view` has the draft model's tokens of the text of `request`, except `pending`: the bytes of an
    incomplete character, with which a draft must start. `way` is the translation method; `shared`: this draft
    uses shared tokens only. `context` is the end of the text, `ratio` the recent number of draft-model tokens
    per target token.
    """

    request: RequestView
    languages: Languages
    way: str
    mirror: Mirror
    view: RequestView
    known: int = 0
    shared: bool = False
    pending: bytes = b""
    context: bytes = b""
    ratio: float = 1.0
    greedy: tuple[SamplingParams, RequestView] | None = None
    _spelled: tuple[tuple[int, ...], Pieces] = field(default_factory=lambda: ((), Pieces()))

    @classmethod
    def of(cls, request: RequestView, languages: Languages, way: str) -> Twin:
        """A twin that has not read the request yet."""
        mirror = Mirror(languages.target, languages.draft, languages.pair)
        return cls(request, languages, way, mirror, replace(request, tokens=[]))

    def forget(self, kept: int) -> None:
        """Keep only the first `kept` tokens of the request."""
        self.known = min(self.known, kept)

    def follow(self) -> int:
        """Read new tokens. Returns the number of unchanged tokens of the view."""
        same = self.mirror.follow(self.request.tokens, self.known)
        self.known = len(self.request.tokens)
        self.pending, self.context = self.mirror.pending, self.mirror.tail(CONTEXT)
        alike, self.ratio = self.mirror.recent()
        self.shared = self.way == "tli" or (self.way == "auto" and not self.pending and alike >= ALIKE)
        same = min(same, len(self.view.tokens))
        self.view.tokens[same:] = self.mirror.pieces.tokens[same:]
        self._spelled = ((), Pieces())
        return same

    def unfinished(self, draft: Sequence[int]) -> bytes:
        """The part of `pending` that the draft does not cover."""
        if not self.pending:
            return b""
        return self.pending[sum(len(self.languages.draft.token_bytes(token)) for token in draft) :]

    def spell(self, draft: Sequence[int]) -> Pieces:
        """The draft as the target's tokens, with their ends in bytes."""
        key = tuple(draft)
        if self._spelled[0] != key:
            pair = self.languages
            text = b"".join(map(pair.draft.token_bytes, key))[len(self.pending) :]
            self._spelled = (key, spell(pair.target, pair.pair, self.context, text))
        return self._spelled[1]
