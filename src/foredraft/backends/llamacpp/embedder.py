"""Embedding models and rerankers on llama.cpp, which pools by itself.

A text is computed in a forward of its own. llama.cpp can put several into one, but their tokens then attend
to the tokens of all, masked, and means are sums over all: a vector would depend, in its last bits, on what
else was asked for. What that costs: docs/embeddings.md.

Models that see the whole text at once need a forward, and buffers, as large as the text: they begin with
those of short texts, and get a larger context when a longer one comes. Of models that read from left to right
and are pooled at the last token, all but the last are read in pieces and without output, because llama.cpp
would compute the logits of every row that has one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from foredraft.backends.llamacpp import abi
from foredraft.backends.llamacpp.batch import Batch
from foredraft.backends.llamacpp.binding import lib
from foredraft.backends.llamacpp.tokenizer import LlamaCppTokenizer
from foredraft.embedding import EmbedderTraits, Encoded, Pooling, Vectors
from foredraft.errors import BackendError
from foredraft.types import ModelInfo, Rows

SHORT = 512
"""Tokens of a text for which there is room at first."""

POOLING_TYPES: dict[Pooling, int] = {
    "mean": abi.LLAMA_POOLING_TYPE_MEAN,
    "cls": abi.LLAMA_POOLING_TYPE_CLS,
    "last": abi.LLAMA_POOLING_TYPE_LAST,
}

_NO_TOKEN = -1


class Frame(NamedTuple):
    """The special tokens before and after a text, and between the texts of a pair."""

    before: Sequence[int]
    after: Sequence[int]
    between: Sequence[int]


class LlamaCppEmbedder:
    """An Embedder. `create` makes a context with room for a text of `room` tokens in one forward; `template`
    is the text around a pair, with `{query}` and `{document}`, of models that have one.
    """

    def __init__(
        self,
        weights: Any,
        tokenizer: LlamaCppTokenizer,
        info: ModelInfo,
        traits: EmbedderTraits,
        *,
        create: Callable[[int], Any],
        template: str | None,
    ) -> None:
        self.info, self.traits = info, traits
        self.tokenizer = tokenizer
        self._weights = weights
        self._create, self._template = create, template
        self._frame = _frame_of(lib.llama_model_get_vocab(weights))
        self._encoder = bool(lib.llama_model_has_encoder(weights))
        self._room = 0
        self._context: Any = None
        self._batch: Batch | None = None
        self._make_room(1)

    def encode(self, text: str) -> Encoded:
        frame = self._frame
        tokens = [*frame.before, *self.tokenizer.encode(text), *frame.after]
        return Encoded(tokens, head=len(frame.before), tail=len(frame.after))

    def encode_pair(self, query: str, document: str) -> Encoded:
        frame, encode = self._frame, self.tokenizer.encode
        if self._template is None:
            head = [*frame.before, *encode(query), *frame.between]
            tokens = [*head, *encode(document), *frame.after]
            return Encoded(tokens, head=len(head), tail=len(frame.after))
        before, _, after = self._template.partition("{document}")
        first, _, second = before.partition("{query}")
        head = [*encode(first, special=True, add_bos=True), *encode(query), *encode(second, special=True)]
        tail = encode(after, special=True)
        return Encoded([*head, *encode(document), *tail], head=len(head), tail=len(tail))

    def compute(self, texts: Sequence[Encoded]) -> Vectors:
        found = np.empty((len(texts), self.traits.dimensions), np.float32)
        for place, text in enumerate(texts):
            found[place] = self._vector(text.tokens)
        return found

    def _vector(self, tokens: Sequence[int]) -> Vectors:
        in_pieces = self._reads_in_pieces
        self._make_room(1 if in_pieces else len(tokens))
        if memory := lib.llama_get_memory(self._context):
            lib.llama_memory_clear(memory, False)  # noqa: FBT003 - C
        last = len(tokens) - 1 if in_pieces else 0
        if last:
            lib.llama_set_embeddings(self._context, False)  # noqa: FBT003 - C
        for start in range(0, last, self._room):
            self._forward(start, tokens[start : min(start + self._room, last)], wanted=0)
        if last:
            lib.llama_set_embeddings(self._context, True)  # noqa: FBT003 - C
        self._forward(last, tokens[last:], wanted=len(tokens) - last)
        return self._pooled()

    def _forward(self, start: int, tokens: Sequence[int], *, wanted: int) -> None:
        assert self._batch is not None
        self._batch.fill([Rows(0, start, tokens, wanted)], [0])
        run = lib.llama_encode if self._encoder else lib.llama_decode
        status = run(self._context, self._batch.native)
        if status:
            raise BackendError(f"llama.cpp failed to compute a text (code {status}).")

    def _pooled(self) -> Vectors:
        """The vector that the last forward has pooled, with as many numbers as the model's traits say: a
        reranker for several classes has that of the first, which is "yes".
        """
        pointer = lib.llama_get_embeddings_seq(self._context, 0)
        if not pointer:
            raise BackendError("llama.cpp returned no vector.")
        vector = np.ctypeslib.as_array(pointer, (self.traits.dimensions,)).copy()
        if not np.isfinite(vector).all():
            raise BackendError(f"{self.info.name} computed what is no number.")
        return vector

    @property
    def _reads_in_pieces(self) -> bool:
        """Whether the vector is that of the last token, which sees those before it."""
        at_the_end = self.traits.pooling == "last" or self.traits.kind == "reranker"
        causal = lib.llama_get_causal_attn(self._context)
        return bool(at_the_end and causal and lib.llama_get_memory(self._context))

    def _make_room(self, tokens: int) -> None:
        """Have a context for a text of this number of tokens. Raises CapacityError, BackendError."""
        if tokens <= self._room:
            return
        if self._weights is None:
            raise BackendError("The model is closed.", hint="Load it again.")
        room = SHORT
        while room < tokens:
            room *= 2
        room = min(room, self.traits.most_tokens)
        self._drop_context()
        try:
            self._context = self._create(room)
        except BaseException:
            if room > (least := min(SHORT, self.traits.most_tokens)):
                self._context = self._create(least)
                self._batch, self._room = Batch(least), least
            raise
        self._batch, self._room = Batch(room), room

    def _drop_context(self) -> None:
        if self._batch is not None:
            self._batch.free()
        if self._context is not None:
            lib.llama_free(self._context)
        self._batch = self._context = None
        self._room = 0

    def close(self) -> None:
        self._drop_context()
        if self._weights is not None:
            self.tokenizer.close()
            lib.llama_model_free(self._weights)
            self._weights = None


def _frame_of(vocab: Any) -> Frame:
    """The special tokens that llama.cpp puts around a text of this vocabulary."""
    plain, framed = (_split(vocab, special=special) for special in (False, True))
    last = len(framed) - len(plain)
    start = next((at for at in range(last + 1) if framed[at : at + len(plain)] == plain), None)
    if start is None:
        return Frame((), (), ())
    before, after = framed[:start], framed[start + len(plain) :]
    end, sep = lib.llama_vocab_eos(vocab), lib.llama_vocab_sep(vocab)
    between: list[int] = []
    if lib.llama_vocab_get_add_eos(vocab):
        between.append(end if end != _NO_TOKEN else sep)
    if lib.llama_vocab_get_add_sep(vocab):
        between.append(sep)
    return Frame(before, after, [token for token in between if token != _NO_TOKEN] or after)


def _split(vocab: Any, *, special: bool) -> list[int]:
    text, capacity = b"a", 16
    tokens = (abi.llama_token * capacity)()
    count = lib.llama_tokenize(vocab, text, len(text), tokens, capacity, special, False)  # noqa: FBT003 - C
    return list(tokens[: max(count, 0)])
