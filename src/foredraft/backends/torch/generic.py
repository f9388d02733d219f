"""Most other models: transformers' own forward, with our attention and KV cache in it.

transformers allows the attention function to be replaced by name. The model is run over the packed rows of
all sequences as if they were one text without a cache; positions are passed in, and the function keeps the
cache and computes what each row may see. vLLM runs unknown models in the same way. Layers are distinguished
by the order in which a forward calls them: some share their weights, and their number (Zamba).
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from itertools import count
from typing import Any

import torch
from transformers import AttentionInterface, AttentionMaskInterface

from foredraft.backends.torch.attention import Attention, Style
from foredraft.backends.torch.batch import Batch
from foredraft.backends.torch.check import AS_GGUF
from foredraft.backends.torch.features import Taps
from foredraft.backends.torch.kv import KVCache
from foredraft.backends.torch.seeing_kinds import kind_of
from foredraft.errors import UnsupportedModelError

_numbers = count()


def is_supported(source: Any) -> bool:
    """Whether transformers' implementation of the model allows the attention function to be replaced."""
    return bool(getattr(source, "_supports_attention_backend", False))


class UnseenWindowError(UnsupportedModelError):
    """A row does not see all earlier ones, and only a mask tells so (Qwen2-MoE, Llama 4)."""


class GenericForward:
    """Computes a batch over a KV cache with transformers' model `source`, which it modifies.

    `watch`: the hidden states that it keeps. Raises UnsupportedModelError if there are no such ones.
    """

    def __init__(self, source: Any, cache: KVCache, attention: Attention, watch: Sequence[str] = ()) -> None:
        self._source, self._cache, self._attention = source, cache, attention
        self._batch: Batch | None = None
        self._called = 0
        self._masked: set[int] = set()
        self._windows: set[int] = set()
        self._taps = Taps(source, watch) if watch else None
        self._name = f"foredraft_{next(_numbers)}"
        AttentionInterface.register(self._name, self._attend)
        AttentionMaskInterface.register(self._name, self._note_mask)
        kind = kind_of(source.config)
        self._sees = kind is not None
        source.set_attn_implementation({"text_config": self._name} if self._sees else self._name)
        if kind is not None:
            text = getattr(source.model, kind.text)
            text.register_forward_pre_hook(self._with_deep, with_kwargs=True)
        self._keeps = "logits_to_keep" in inspect.signature(source.forward).parameters
        if not self._keeps:
            source.get_output_embeddings().register_forward_pre_hook(self._only_wanted)

    def __call__(self, batch: Batch) -> Any:
        """Logits of the wanted rows, shape (rows wanted, vocabulary)."""
        self._batch, self._called = batch, 0
        if self._taps is not None:
            self._taps.begin()
        try:
            output = self._source(
                **self._rows(batch),
                use_cache=False,
                **({"logits_to_keep": batch.wanted} if self._keeps else {}),
            )
        finally:
            self._batch = None
        if self._taps is not None:
            batch.features[:] = self._taps.taken()
        return output.logits[0]

    def _rows(self, batch: Batch) -> dict[str, Any]:
        """The rows as tokens, or those of a model that sees as what its layers read, and their positions."""
        places = batch.positions[None] if batch.places is None else batch.places[:, None]
        if not self._sees:
            return {"input_ids": batch.tokens[None], "position_ids": places}
        vectors = self._source.get_input_embeddings()(batch.tokens)
        for image in batch.images:
            vectors[image.first : image.first + len(image.vectors)] = image.vectors
        return {"inputs_embeds": vectors[None], "position_ids": places}

    def _with_deep(
        self, _text: Any, inputs: tuple[Any, ...], named: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        """For a model whose images also reach deeper layers (Qwen3-VL): pass on what is added there."""
        images = [] if self._batch is None else [image for image in self._batch.images if image.deep]
        if not images or self._batch is None:
            return None
        mask = torch.zeros(1, len(self._batch.tokens), dtype=torch.bool, device=self._batch.tokens.device)
        for image in images:
            mask[:, image.first : image.first + len(image.vectors)] = True
        added = [torch.cat(layer) for layer in zip(*(image.deep for image in images), strict=True)]
        return inputs, {**named, "visual_pos_masks": mask, "deepstack_visual_embeds": added}

    def check_windows(self, context_length: int) -> None:
        """Raises UnseenWindowError if the forwards so far had a window shorter than `context_length` that was
        not passed to the attention function. Must be called once.
        """
        AttentionMaskInterface._global_mapping.pop(self._name, None)  # no more masks are needed
        if any(window < context_length for window in self._masked - self._windows):
            raise UnseenWindowError("The model has a window or chunks of attention only in its mask.")

    def _note_mask(self, *_: Any, local_size: int | None = None, **__: Any) -> None:
        """Callback of transformers for a mask. It returns none, but records how far a row sees."""
        if local_size is not None:
            self._masked.add(local_size)

    def _only_wanted(self, _head: Any, inputs: tuple[Any, ...]) -> tuple[Any, ...] | None:
        """For a model that computes the logits of all rows (xLSTM): keep only the wanted ones."""
        if self._batch is None:
            return None
        hidden, *rest = inputs
        return hidden[:, self._batch.wanted], *rest

    def _attend(
        self,
        module: Any,  # noqa: ARG002 - not every layer has its own module
        query: Any,
        key: Any,
        value: Any,
        attention_mask: Any,  # noqa: ARG002 - replaced by our own
        *,
        scaling: float | None = None,
        sliding_window: int | None = None,
        softcap: float | None = None,
        s_aux: Any = None,
        position_bias: Any = None,
        indices: Any = None,
        block_indices: Any = None,
        **rest: Any,  # noqa: ARG002 - dropout and other options for training
    ) -> tuple[Any, None]:
        """Attention function for transformers: (1, heads, rows, size) in, (1, rows, heads, size) out."""
        if any(special is not None for special in (position_bias, indices, block_indices)):
            raise UnsupportedModelError(
                "Attention with a bias by distance, or to selected rows only, is not supported.",
                hint=AS_GGUF,
            )
        batch = self._batch
        assert batch is not None, "the model is only run by __call__"
        q, k, v = (tensor[0].transpose(0, 1) for tensor in (query, key, value))
        if sliding_window is not None:
            self._windows.add(sliding_window)
        cells = self._cache.layer(self._called, k.shape[1], k.shape[2], v.shape[2])
        self._called += 1
        scale = query.shape[-1] ** -0.5 if scaling is None else scaling
        style = Style(scale, sliding_window, softcap, s_aux)
        return self._attention(cells, batch, q, (k, v), style=style)[None], None

    def close(self) -> None:
        """Free the weights."""
        AttentionInterface._global_mapping.pop(self._name, None)
        AttentionMaskInterface._global_mapping.pop(self._name, None)
        if self._taps is not None:
            self._taps.close()
        self._source = None
