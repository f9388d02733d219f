"""Which matrices of a LoRA adapter llama.cpp computes with.

It adds what an adapter does where a model's graph is built of products that know adapters (`build_lora_mm`).
Some graphs multiply otherwise, such as by `attn_k_b` and `attn_v_b` of latent attention (DeepSeek-V2, arXiv
2405.04434, section 2.1), and then leave an adapter's matrices out without a word. No file and no exported
function tells; but the nodes of a forward do: the matrices are sources of some. What no node reads is not
left out: layers that use the keys and values of earlier ones have matrices of their own, which are not used
(Gemma 3n's and 4's), and adapters change them, too, without effect.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from typing import Any

from foredraft.backends.llamacpp import abi
from foredraft.backends.llamacpp.adapter_file import AdapterFile
from foredraft.backends.llamacpp.adapters import Loaded, set_adapters, tiny_context
from foredraft.backends.llamacpp.binding import lib
from foredraft.backends.llamacpp.gguf_file import GGUFSummary
from foredraft.errors import BackendError

_ROWS = (1, 2)
"""Of the forwards that are looked at: a graph may be another one for several rows."""

_Watch = ctypes.CFUNCTYPE(ctypes.c_bool, ctypes.c_void_p, ctypes.c_bool, ctypes.c_void_p)
"""`ggml_backend_sched_eval_callback`: called before each node whether its result is wanted."""


def left_out(adapter: AdapterFile, loaded: Loaded, weights: Any, model: GGUFSummary) -> list[str]:
    """The matrices of the model that an adapter, loaded as the only file of `loaded`, changes, and that
    forwards of text multiply with without it. Raises BackendError.
    """
    first = model.block_count - _following(model)
    forwards = _read(weights, loaded)
    return [
        name
        for name in adapter.pairs
        if _layer(name) < first
        and any(name in tensors and f"{name}.lora_a" not in tensors for tensors in forwards)
    ]


def _following(model: GGUFSummary) -> int:
    """Layers for multi-token prediction: they draft, which is done without adapters."""
    count = model.metadata.get(f"{model.architecture}.nextn_predict_layers", 0)
    return count if isinstance(count, int) else 0


def _layer(name: str) -> int:
    """The layer that a tensor is of; -1 for one of none."""
    number = name.removeprefix("blk.").partition(".")[0]
    return int(number) if name.startswith("blk.") and number.isdecimal() else -1


def _read(weights: Any, loaded: Loaded) -> list[set[str]]:
    """The names of the tensors that each forward reads."""
    found: set[str] = set()

    def watch(node: int, before: bool, _: object) -> bool:
        if before:
            found.update(_sources(node))
        return False

    watching = _Watch(watch)
    context = tiny_context(weights, rows=max(_ROWS), watch=watching)
    if not context:
        raise BackendError("llama.cpp cannot create a context for the trial of an adapter.")
    try:
        set_adapters(context, [(part, 1.0) for part, _ in loaded.parts])  # at 0 none would be read
        each = []
        for rows in _ROWS:
            found.clear()
            tokens = (abi.llama_token * rows)()
            if lib.llama_decode(context, lib.llama_batch_get_one(tokens, rows)):
                raise BackendError("llama.cpp cannot compute a forward with the adapter.")
            each.append(set(found))
    finally:
        lib.llama_free(context)
    return each


def _sources(node: int) -> Iterator[str]:
    """The names of what a node reads, of views those of what they show."""
    for source in abi.ggml_tensor.from_address(node).src:
        address = source
        while address:
            tensor = abi.ggml_tensor.from_address(address)
            if not tensor.view_src:
                yield ctypes.string_at(address + abi.ggml_tensor.name.offset).decode("utf-8", "replace")
            address = tensor.view_src
