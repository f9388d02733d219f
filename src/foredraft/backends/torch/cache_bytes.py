"""A cache of transformers as bytes: the tokens it holds, then its tensors in the order of their layers.

Nothing in the bytes says what they are. A cache that was filled before is the model for others: keys and
values differ from its own in how many tokens there are, states in nothing but their numbers.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from struct import Struct
from typing import Any

import torch
from transformers.cache_utils import DynamicLayer, LinearAttentionAndFullAttentionLayer, LinearAttentionLayer

from foredraft.errors import BackendError

_HEADER = Struct("<q")
_LAYERS = {DynamicLayer, LinearAttentionLayer, LinearAttentionAndFullAttentionLayer}
_PER_TOKEN, _TOKENS = ("keys", "values"), -2
"""What grows with the text, and in which dimension."""


def can_be_bytes(cache: Any, length: int) -> bool:
    """Whether the layers of a cache of so many tokens keep keys and values of each, or states of one size,
    and nothing else.
    """
    kept = [holder[name].shape[_TOKENS] for holder, name in _tensors(cache) if name in _PER_TOKEN]
    return set(kept) <= {length} and all(type(layer) in _LAYERS for layer in cache.layers)


class CacheBytes:
    """Writes caches like `example`, which holds some tokens, and reads them."""

    def __init__(self, example: Any) -> None:
        self._example = example

    def write(self, cache: Any, length: int) -> bytearray:
        """The snapshot of a cache of so many tokens, None of none. Raises BackendError where it is not like
        the example.
        """
        saved = bytearray(_HEADER.pack(length))
        forms = self._forms(length)
        for holder, name in _tensors(cache) if length else ():
            if (holder[name].shape, holder[name].dtype) != next(forms, None):
                raise BackendError("The model's cache has another form than when it was loaded.")
            saved += holder[name].contiguous().flatten().view(torch.uint8).cpu().numpy().data
        return saved

    def read(self, snapshot: object, most: int) -> tuple[int, Any]:
        """A new cache of at most so many tokens, and how many. Raises BackendError where the snapshot is not
        one of this model.
        """
        if not isinstance(snapshot, bytearray):
            raise BackendError("This is not a snapshot of this model.")
        (length,) = _HEADER.unpack_from(snapshot) if len(snapshot) >= _HEADER.size else (-1,)
        if not 0 <= length <= most or len(snapshot) != self._size(length):
            raise BackendError("This is not a snapshot of this model, or it is not whole.")
        if not length:
            return 0, None
        cache, at = copy.deepcopy(self._example), _HEADER.size
        for (holder, name), (shape, dtype) in zip(_tensors(cache), self._forms(length), strict=True):
            count = shape.numel() * dtype.itemsize
            raw = torch.frombuffer(snapshot, dtype=torch.uint8, count=count, offset=at)
            holder[name] = raw.clone().view(dtype).view(shape).to(holder[name].device)
            at += count
        return length, cache

    def _size(self, length: int) -> int:
        forms = self._forms(length) if length else ()
        return _HEADER.size + sum(int(shape.numel() * dtype.itemsize) for shape, dtype in forms)

    def _forms(self, length: int) -> Iterator[tuple[Any, Any]]:
        """The shapes and formats of a cache of so many tokens."""
        for holder, name in _tensors(self._example):
            shape = list(holder[name].shape)
            if name in _PER_TOKEN:
                shape[_TOKENS] = length
            yield torch.Size(shape), holder[name].dtype


def _tensors(cache: Any) -> Iterator[tuple[dict[Any, Any], Any]]:
    """Where a cache has its tensors: each a dictionary and a key in it."""
    for layer in cache.layers:
        held = vars(layer)
        for holder in (held, *(held[name] for name in sorted(held) if isinstance(held[name], dict))):
            yield from [(holder, key) for key in sorted(holder) if torch.is_tensor(holder[key])]
