"""Makes rotary positions independent of a forward's longest position.

LongRoPE (Ding et al. 2024, arXiv 2402.13753) has different frequencies for short and long texts, and
transformers uses those of the longest text in a forward for all its rows. Here a forward has rows of several
texts, a prompt may be split, and a draft reaches further than the row it follows: a row's rotation would
depend on the other rows. So the context length decides: if it is that of short texts, every row is rotated as
in a short text, otherwise as in a long text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from foredraft.backends.rope import Positions, positions_of_parameters

_ADAPTING = frozenset({"longrope", "dynamic"})
_LOCAL = frozenset({"sliding_attention", "chunked_attention"})


def short_context(config: Any) -> int | None:
    """The maximum length with the frequencies of short texts; None if all lengths have the same ones."""
    rope = getattr(config.get_text_config(), "rope_parameters", None) or {}
    kinds = [rope, *(kind for kind in rope.values() if isinstance(kind, dict))]  # for each kind of layers
    lengths = [
        int(kind["original_max_position_embeddings"])
        for kind in kinds
        if kind.get("rope_type") == "longrope" and kind.get("original_max_position_embeddings")
    ]
    return min(lengths, default=None)


def positions_in(config: Any) -> Positions:
    """The scaling of positions that a configuration says."""
    text = config.get_text_config()
    trained = int(getattr(text, "max_position_embeddings", 0) or getattr(text, "n_positions", 0) or 0)
    entry = next(_scalable(text), None)
    if entry is None:
        return Positions("", trained=trained)
    return positions_of_parameters(entry, trained)


def set_positions(config: Any, positions: Positions) -> None:
    """Change a configuration to the scaling that was asked for, if one was."""
    if not positions.asked:
        return
    for entry in _scalable(config.get_text_config()):
        for key in ("type", "factor", "original_max_position_embeddings", "attention_factor"):
            entry.pop(key, None)
        entry["rope_type"] = "default" if positions.kind == "none" else positions.kind
        if positions.kind != "none":
            entry["factor"] = positions.factor
        if positions.kind == "yarn":
            entry["original_max_position_embeddings"] = positions.original
        if positions.base:
            entry["rope_theta"] = positions.base


def _scalable(text: Any) -> Iterator[dict[str, Any]]:
    """The rotary parameters of layers that see the whole text."""
    rope = getattr(text, "rope_parameters", None) or {}
    kinds = {name: kind for name, kind in rope.items() if isinstance(kind, dict)}
    if not kinds and rope:
        yield rope
    yield from (kind for name, kind in kinds.items() if name not in _LOCAL)


def settle_rotary(source: Any, context_length: int) -> None:
    """Make transformers' model `source` rotate every row as in a text as long as the context."""
    for module in source.modules():
        kinds = getattr(module, "rope_type", None)
        if _ADAPTING & set(kinds.values() if isinstance(kinds, dict) else [kinds]):
            module.forward = _as_in_a_text_of(context_length, module.forward)


def _as_in_a_text_of(length: int, forward: Callable[..., Any]) -> Callable[..., Any]:
    """A module's forward with an additional row, the last one of such a text, removed from the result."""

    def apply(x: Any, position_ids: Any, *rest: Any, **options: Any) -> Any:
        last = position_ids.new_full((*position_ids.shape[:-1], 1), length - 1)
        made = forward(x, torch.cat([position_ids, last], -1), *rest, **options)
        return tuple(part[:, :-1] for part in made) if isinstance(made, tuple) else made[:, :-1]

    return apply
