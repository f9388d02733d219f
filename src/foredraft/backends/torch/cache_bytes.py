"""A transformers cache as bytes: the number of tokens, then its tensors in the order of the layers.

The bytes have no description of their own. An existing cache serves as the example: other caches' keys and
values differ from its own in the number of tokens, states only in their numbers.
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
"""Names of the tensors that grow with the text, and their dimension."""


def can_be_bytes(cache: Any, length: int) -> bool:
    """Whether all layers of a cache with this number of tokens keep either keys and values of each token, or
    states of one size, and nothing else.
    """
    kept = [holder[name].shape[_TOKENS] for holder, name in _tensors(cache) if name in _PER_TOKEN]
    return set(kept) <= {length} and all(type(layer) in _LAYERS for layer in cache.layers)


class CacheBytes:
    """Writes caches of the form of `example`, which holds some tokens, and reads them."""

    def __init__(self, example: Any) -> None:
        self._example = example

    def write(self, cache: Any, length: int) -> bytearray:
        """The snapshot of a cache of `length` tokens; None means an empty one. Raises BackendError if it
        differs in form from the example.
        """
        saved = bytearray(_HEADER.pack(length))
        forms = self._forms(length)
        for holder, name in _tensors(cache) if length else ():
            if (holder[name].shape, holder[name].dtype) != next(forms, None):
                raise BackendError("The model's cache has another form than when it was loaded.")
            saved += holder[name].contiguous().flatten().view(torch.uint8).cpu().numpy().data
        return saved

    def read(self, snapshot: object, most: int) -> tuple[int, Any]:
        """A new cache of at most `most` tokens, and its number of tokens. Raises BackendError if the snapshot
        does not belong to this model.
        """
        if not isinstance(snapshot, bytearray):
            raise BackendError("This is not a snapshot of this model.")
        (length,) = _HEADER.unpack_from(snapshot) if len(snapshot) >= _HEADER.size else (-1,)
        if not 0 <= length <= most or len(snapshot) != self._size(length):
            raise BackendError("This is not a snapshot of this model, or it is incomplete.")
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
        """The shapes and formats of a cache with this number of tokens."""
        for holder, name in _tensors(self._example):
            shape = list(holder[name].shape)
            if name in _PER_TOKEN:
                shape[_TOKENS] = length
            yield torch.Size(shape), holder[name].dtype


def _tensors(cache: Any) -> Iterator[tuple[dict[Any, Any], Any]]:
    """The places of a cache's tensors: each a dictionary and a key in it."""
    for layer in cache.layers:
        held = vars(layer)
        for holder in (held, *(held[name] for name in sorted(held) if isinstance(held[name], dict))):
            yield from [(holder, key) for key in sorted(holder) if torch.is_tensor(holder[key])]
