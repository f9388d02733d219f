"""What a forward's cost is filed under: only forwards of the same kind are compared."""

from __future__ import annotations

from collections.abc import Mapping

SHALLOW_TOKENS = 384
"""Context depth up to which all depths share a curve; each further curve is for twice the depth."""

Condition = tuple[int, tuple[str, ...]]
"""Threads left out (`Model.idle_threads`), and `Load.adapters`: V(1) itself depends on them."""

Key = tuple[int, int, Condition]
"""Batch class, depth band, and condition."""

USUAL: Condition = (0, ())


def band_of(depth: int) -> int:
    """The number of the depth band of a context of `depth` tokens."""
    return (depth // SHALLOW_TOKENS).bit_length()


def depth_of(band: int) -> int:
    """A depth within a band, in tokens."""
    return SHALLOW_TOKENS // 2 if band == 0 else SHALLOW_TOKENS * 3 // 2 << (band - 1)


def batch_class(batch_size: int) -> int:
    """Batch sizes of one class share a curve: each up to 8 has its own, then 9 to 16, 17 to 32 and so on."""
    return batch_size if batch_size <= 8 else 5 + (batch_size - 1).bit_length()


def in_passes(known: Mapping[int, float], more: int) -> dict[int, float]:
    """V(n)/V(1) if one row more in each of `more` passes is computed with another adapter."""
    if not more:
        return dict(known)
    return {1: 1.0} | {rows + more: more + cost for rows, cost in known.items()}


def distance(key: Key, known: Key) -> tuple[object, ...]:
    """How far what is known is from `key`, whose batch class is no smaller."""
    (idle, adapters), (its_idle, its_adapters) = key[2], known[2]
    same = adapters != its_adapters, bool(its_adapters)
    return *same, abs(its_idle - idle), key[0] - known[0], abs(known[1] - key[1])
