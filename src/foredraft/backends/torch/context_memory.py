"""How long a context is, by what transformers' configurations say that it takes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from foredraft.backends import context_size
from foredraft.backends.context_size import Chosen
from foredraft.backends.rope import Positions
from foredraft.backends.torch.attention import cells_dtype
from foredraft.backends.torch.rotary import short_context
from foredraft.config import DEFAULT_CONTEXT, ModelOptions

STATES = ("state_size", "ssm_cfg", "mamba_d_state", "linear_conv_kernel_dim", "conv_L_cache")
"""In configurations of models whose layers keep a state in place of keys and values."""


def context_for(
    files: Sequence[Path],
    config: Any,
    positions: Positions,
    options: ModelOptions,
    *,
    dtype: Any,
    device: Any,
) -> Chosen:
    """The context length: what was asked for, or what fits in memory. Raises CapacityError for one that was
    asked for and could never be filled.
    """
    weights = sum(file.stat().st_size for file in files)
    text, kept_as = config.get_text_config(), cells_dtype(dtype, device)
    if options.context_length:
        if options.context_length > DEFAULT_CONTEXT:
            per_token = options.sequences * _cell_bytes(text, kept_as, _whole_layers(text))
            memory = _all_memory(weights, device)
            context_size.check_fits(options.context_length, options.sequences, per_token, memory)
        return Chosen(options.context_length, "")
    reach = short_context(config) or positions.reach
    free, share = context_size.free_memory(), context_size.SHARE
    if device.type == "cuda":
        free, share = torch.cuda.mem_get_info(device)[0], context_size.DEVICE_SHARE
    if free is not None:
        free = max(min(free, options.memory_budget or free) - weights, 0)
    per_token = options.sequences * _cell_bytes(text, kept_as, getattr(text, "num_hidden_layers", 0))
    return context_size.choose(reach, options.context_at_most, per_token, free, share=share)


def _all_memory(weights: int, device: Any) -> int | None:
    """Bytes that the device has for a context in all; None if that is not known. Weights that a device has no
    room for are streamed from the processor's memory.
    """
    if device.type == "cuda":
        whole = int(torch.cuda.mem_get_info(device)[1])
        return whole - weights if weights < whole else whole
    memory = context_size.all_memory()
    return None if memory is None else memory - weights


def _whole_layers(text: Any) -> int:
    """How many layers keep all tokens of a text, as far as the configuration says: not those with a window
    or a state.
    """
    kinds = getattr(text, "layer_types", None) or getattr(text, "layers_block_type", None)
    if kinds:
        return sum(kind in ("full_attention", "attention") for kind in kinds)
    windowed = getattr(text, "sliding_window", None) and getattr(text, "use_sliding_window", True)
    keeps = getattr(text, "num_attention_heads", None) and not any(hasattr(text, key) for key in STATES)
    return 0 if windowed or not keeps else int(getattr(text, "num_hidden_layers", 0))


def _cell_bytes(text: Any, dtype: Any, layers: int) -> int:
    """Memory of a token's keys and values in this number of layers, as if each saw the whole text."""
    heads = getattr(text, "num_key_value_heads", None) or getattr(text, "num_attention_heads", None) or 1
    size = getattr(text, "head_dim", None)
    size = size or getattr(text, "hidden_size", 0) // max(getattr(text, "num_attention_heads", 1), 1)
    return int(2 * layers * heads * size * dtype.itemsize)
