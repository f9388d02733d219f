"""The scaling of positions in a GGUF file, and as parameters of llama.cpp."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from foredraft.backends.llamacpp.gguf_file import GGUFSummary
from foredraft.backends.llamacpp.gguf_native import Array, Value
from foredraft.backends.rope import Positions, positions_of

_ORIGINAL = "scaling.original_context_length"
_TYPES = {"none": 0, "linear": 1, "yarn": 2}
"""llama_rope_scaling_type."""

_OWN_FREQUENCIES = {"rope_freqs.weight": "llama3", "rope_factors_long.weight": "longrope"}
"""Tensors with a factor for each frequency."""

_LEARNED = "position_embd.weight"


def positions_in(summary: GGUFSummary) -> Positions:
    """What the header says. Learned positions (BERT's) are rows of a table, which ends where training did."""
    architecture, metadata, trained = summary.architecture, summary.metadata, summary.context_length
    if any(tensor.name == _LEARNED for tensor in summary.tensors):
        return Positions("", original=trained, trained=trained)

    def number(key: str) -> float:
        return _number(metadata, f"{architecture}.rope.{key}")

    factor, original = number("scaling.factor") or number("scale_linear") or 1.0, number(_ORIGINAL)
    kind = _own_frequencies(summary) or str(metadata.get(f"{architecture}.rope.scaling.type") or "linear")
    return positions_of(kind, factor, original, trained)


def _own_frequencies(summary: GGUFSummary) -> str:
    names = (tensor.name.rpartition("blk.0.")[2] for tensor in summary.tensors)
    return next((kind for name in names if (kind := _OWN_FREQUENCIES.get(name))), "")


def _number(metadata: Mapping[str, Value | Array], key: str) -> float:
    value = metadata.get(key, 0)
    return float(value) if isinstance(value, int | float) else 0.0


def set_positions(params: Any, positions: Positions) -> None:
    """Set a context's parameters; without a scaling that was asked for they stay the file's."""
    if not positions.asked:
        return
    params.rope_scaling_type = _TYPES[positions.kind]
    params.rope_freq_scale = 1.0 / positions.factor
    params.rope_freq_base = positions.base
    params.yarn_orig_ctx = positions.original if positions.kind == "yarn" else 0
