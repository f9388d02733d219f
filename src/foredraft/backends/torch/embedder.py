"""Embedding models and rerankers of transformers.

On a processor a text is computed in a forward of its own: beside others it would be padded, and its vector
would depend on them in its last bits. On a device texts share forwards.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from foredraft.backends.torch.tokenizer import TorchTokenizer
from foredraft.embedding import EmbedderTraits, Encoded, Vectors
from foredraft.errors import BackendError, CapacityError, first_line
from foredraft.types import ModelInfo


class TorchEmbedder:
    """An Embedder. `rest` is what follows the pooling: layers and normalisation, on rows of vectors.
    `segmented`: whether the model wants each token's type.
    """

    def __init__(
        self,
        weights: Any,
        tokenizer: TorchTokenizer,
        info: ModelInfo,
        traits: EmbedderTraits,
        *,
        device: Any,
        segmented: bool,
        rest: Sequence[Callable[[Any], Any]] = (),
    ) -> None:
        self.info, self.traits = info, traits
        self.tokenizer = tokenizer
        self._weights = weights
        self._device = device
        self._segmented = segmented
        self._rest = rest

    def encode(self, text: str) -> Encoded:
        return self._encoded(self.tokenizer.framed(text))

    def encode_pair(self, query: str, document: str) -> Encoded:
        return self._encoded(self.tokenizer.framed(query, document), second=True)

    def _encoded(self, found: Any, *, second: bool = False) -> Encoded:
        """With the special tokens around the text, or the first text of a pair, as its head and tail."""
        own = [place for place, of in enumerate(found.sequence_ids) if of == int(second)]
        count = len(found.ids)
        head, tail = (own[0], count - 1 - own[-1]) if own else (count, 0)
        return Encoded(found.ids, found.type_ids if self._segmented else (), head=head, tail=tail)

    def compute(self, texts: Sequence[Encoded]) -> Vectors:
        if self._weights is None:
            raise BackendError("The model is closed.", hint="Load it again.")
        together = [[text] for text in texts] if self.traits.exact else [list(texts)]
        try:
            with torch.inference_mode():
                found = [self._forward(some) for some in together]
        except torch.OutOfMemoryError as error:
            raise CapacityError(
                f"There is not enough memory for these texts ({first_line(error)}).", hint="Send fewer."
            ) from None
        except RuntimeError as error:
            raise BackendError(f"PyTorch failed to compute texts: {first_line(error)}.") from error
        vectors: Vectors = np.concatenate(found)
        if not np.isfinite(vectors).all():
            raise BackendError(f"{self.info.name} computed what is no number.")
        return vectors

    def _forward(self, texts: Sequence[Encoded]) -> Vectors:
        """The vectors of texts in one forward, padded at their ends."""
        lengths = [len(text.tokens) for text in texts]
        longest = max(lengths)
        inputs = {"input_ids": self._padded([text.tokens for text in texts], longest)}
        if len(texts) > 1:
            inputs["attention_mask"] = self._padded([[1] * length for length in lengths], longest)
        if self._segmented:
            segments = [text.segments or [0] * len(text.tokens) for text in texts]
            inputs["token_type_ids"] = self._padded(segments, longest)
        output = self._weights(**inputs)
        if self.traits.kind == "reranker":
            rows = output.logits.float()
        else:
            states = output.last_hidden_state.float()
            rows = torch.stack([self._pooled(states[place, :length]) for place, length in enumerate(lengths)])
        for layer in self._rest:
            rows = layer(rows)
        vectors: Vectors = rows.float().cpu().numpy()
        return vectors

    def _pooled(self, states: Any) -> Any:
        """One vector of those of a text's tokens, of shape (tokens, size)."""
        if self.traits.pooling == "mean":
            return states.mean(dim=0)
        return states[0] if self.traits.pooling == "cls" else states[-1]

    def _padded(self, rows: Sequence[Sequence[int]], longest: int) -> Any:
        padded = [[*row, *[0] * (longest - len(row))] for row in rows]
        return torch.tensor(padded, dtype=torch.long, device=self._device)

    def close(self) -> None:
        self._weights, self._rest = None, ()
