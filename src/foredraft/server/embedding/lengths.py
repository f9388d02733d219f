"""Texts within what a model and the server allow: cut to it if the request says so, else refused."""

from __future__ import annotations

from collections.abc import Sequence

from foredraft.embedding import Encoded, Side
from foredraft.engine.prompt import check_size
from foredraft.errors import ContextLengthError, RequestError
from foredraft.server.embedding.schemas import Truncate
from foredraft.server.embedding.served import ServedEmbedder

Given = str | Sequence[int]

_SPLIT = "Split it, or send truncate: true to cut its end."


class Fitting:
    """Encodes a request's texts. `truncate` and `most` are the request's fields."""

    def __init__(self, served: ServedEmbedder, truncate: Truncate, most: int | None) -> None:
        limit = served.limits.max_prompt_tokens
        self._allowed = min(served.traits.most_tokens, limit or served.traits.most_tokens)
        self._most = self._allowed if most is None or most == -1 else min(most, self._allowed)
        self._side: Side | None = truncate if truncate != "none" else ("end" if most is not None else None)
        self._served = served

    def text(self, what: str, text: str) -> Encoded:
        """The tokens of a text. Raises ContextLengthError for one that is too long, named `what`."""
        self._check_size(what, text)
        return self._fitted(what, self._served.embedder.encode(text))

    def pair(self, what: str, query: str, document: str) -> Encoded:
        """The same of a pair, of which the document is cut."""
        self._check_size(what, document)
        return self._fitted(what, self._served.embedder.encode_pair(query, document))

    def tokens(self, what: str, tokens: Sequence[int]) -> Encoded:
        """Token ids as they are. Raises RequestError for those that the model does not have, too."""
        size = self._served.info.vocab_size
        wrong = next((token for token in tokens if not 0 <= token < size), None)
        if wrong is not None:
            raise RequestError(f"{what} has a token {wrong}; ids are 0 to {size - 1}.")
        return self._fitted(what, Encoded(tokens))

    def _check_size(self, what: str, text: str) -> None:
        """Refuse at once what is far too long to encode, unless it is to be cut."""
        if self._side is not None:
            return
        try:
            check_size(what, text, self._served.info)
        except ContextLengthError as error:  # its hint is for prompts
            raise ContextLengthError(str(error), hint=_SPLIT) from None

    def _fitted(self, what: str, encoded: Encoded) -> Encoded:
        if not encoded.tokens:
            raise RequestError(f"{what} has no tokens.")
        count = len(encoded.tokens)
        if self._side is not None and count > self._most:
            cut = encoded.cut(self._most, self._side)
            if cut is None:
                raise ContextLengthError(
                    f"{what} cannot be cut to {self._most} tokens: {encoded.head + encoded.tail} of them are "
                    "special ones, or the query's.",
                )
            return cut
        if count > self._allowed:
            raise ContextLengthError(
                f"{what} has {count} tokens; this model takes at most {self._allowed}.",
                hint=_SPLIT,
            )
        return encoded
