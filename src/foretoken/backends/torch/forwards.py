"""Which forward computes a model: the lean one, transformers' with our attention in it, or all of its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from foretoken.backends.torch.attention import choose_attention
from foretoken.backends.torch.cached import CachedForward, OwnCaches
from foretoken.backends.torch.check import check_forward, reference_logits
from foretoken.backends.torch.generic import GenericForward, is_supported
from foretoken.backends.torch.kv import KVCache
from foretoken.backends.torch.lean import LeanForward, is_lean
from foretoken.backends.torch.linear import choose_linear, drop_weights, packed_linear, replace_products
from foretoken.backends.torch.model import Cells, Forward
from foretoken.errors import UnsupportedModelError
from foretoken.types import Rollback


@dataclass(frozen=True, slots=True)
class Computation:
    """A forward, the cache it computes over, and what the two can do. `settings` say it in words."""

    forward: Forward
    cells: Cells
    settings: dict[str, str]
    rollback: Rollback = Rollback.TRUNCATE
    trees: bool = True


def choose_forward(
    weights: Any, *, name: str, sequences: int, context_length: int, dtype: Any, device: Any
) -> Computation:
    """For transformers' model `weights`, which it takes over.

    Raises UnsupportedModelError where none computes what transformers does, and CapacityError.
    """
    linear, attention = choose_linear(dtype, device), choose_attention(device)
    products = "packed" if linear is packed_linear else "plain"
    if is_lean(weights, context_length):
        cells = KVCache(sequences, context_length, dtype=dtype, device=device)
        lean = LeanForward(weights, cells, linear, attention)
        return Computation(lean, cells, {"forward": "lean", "products": products})
    expected = reference_logits(weights)
    replaced = replace_products(weights, linear)
    if is_supported(weights):
        cells = KVCache(sequences, context_length, dtype=dtype, device=device)
        generic = GenericForward(weights, cells, attention)
        check_forward(generic, expected, name, device)
        if products == "packed":
            drop_weights(replaced, lambda: check_forward(generic, expected, name, device))
        return Computation(generic, cells, {"forward": "transformers", "products": products})
    own = OwnCaches(sequences, weights.config)
    cached = CachedForward(weights, own)
    try:
        check_forward(cached, expected, name, device, tree=False)
    except UnsupportedModelError:
        if own.croppable:
            raise
        cached.one_by_one = True
        own.release(0)
        check_forward(cached, expected, name, device, tree=False)
    own.release(0)
    return Computation(
        cached,
        own,
        {"forward": "transformers, with its own cache", "products": products},
        rollback=Rollback.TRUNCATE if own.croppable else Rollback.SNAPSHOT,
        trees=False,
    )
